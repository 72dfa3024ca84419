(** The certificate checker as a function, extracted to OCaml (proofs/extract) and proved sound in CheckerSound.v.

    It reads tables (queues of tasks with waits, signals and the bytes they touch) and a certificate (a replay order and a sparse
    table of vector clocks, periodic or written out), as amk_core/schedule/certificate.py defines them.  If it accepts, then for
    every number of steps up to the declared one no run can get stuck and no two conflicting accesses can happen at the same time.

    Trusted, because it is outside: that the tables are read correctly, that the byte ranges listed here are the ones the tasks
    touch, and Coq's extraction. *)

From Coq Require Import Arith ZArith Lia List Bool.
From AMK Require Import Sums Semantics MustOrder Loop Periodic Sweep.
Import ListNotations.

(** *** The input *)
(** The bytes of an access as half-open ranges: one list for all steps, or one a step. *)
Record access := Access { a_write : bool; a_spans : list (list (Z * Z)) }.

Record task := Task {
  t_id : nat;
  t_waits : list (nat * nat * bool);      (** counter, t, does it mean the step before? *)
  t_signals : list (nat * nat);           (** counter, amount *)
  t_after : list (nat * nat);             (** writers (queue, position) of the tagged elements of this step that it polls *)
  t_access : list (list access)           (** one list for each value of the launch variables *)
}.

Record tables := Tables { steps : nat; counters : nat; assignments : nat; task_lists : list (list task) }.

Record certificate := Certificate {
  c_unroll : Z; c_tasks : Z; c_queues : Z;
  c_replay : list Z; c_row : list Z; c_off : list Z; c_queue : list Z; c_value : list Z
}.

Section Input.
Variable X : tables.

Definition nq : nat := length (task_lists X).
Definition queue_of (q : nat) : list task := nth q (task_lists X) [].
Definition no_task := Task 0 [] [] [] [].
Definition task_at (q j : nat) : task := nth j (queue_of q) no_task.

Definition amount (t : task) (c : nat) : nat :=
  fold_right (fun s n => if Nat.eqb (fst s) c then snd s + n else n) 0 (t_signals t).

(** A tagged read waits for its writer, as if the writer signalled a counter of its own. *)
Definition tag_counter (p k : nat) : nat := counters X + (k * nq + p).
Definition tag_signal (q j c : nat) : nat :=
  let d := c - counters X in if Nat.eqb (d mod nq) q && Nat.eqb (d / nq) j then 1 else 0.
Definition signals (q j c : nat) : nat := if c <? counters X then amount (task_at q j) c else tag_signal q j c.

(** Must-order rests on queue order and counter waits only; deadlock freedom counts tagged reads too. *)
Definition order_loop : loop := Loop nq (fun q => length (queue_of q)) (fun q j => t_waits (task_at q j)) signals.
Definition live_loop : loop := Loop nq (fun q => length (queue_of q))
  (fun q j => t_waits (task_at q j) ++ map (fun w => (tag_counter (fst w) (snd w), 1, false)) (t_after (task_at q j))) signals.

Definition spans_at (a : access) (i : nat) : list (Z * Z) := match a_spans a with [s] => s | l => nth i l [] end.
Definition accesses (x q j : nat) : list access := nth x (t_access (task_at q j)) [].

(** Task [m] of queue [q] (over all steps) touches byte [z], for the values of the launch variables number [x]. *)
Definition touches (w : bool) (x q m : nat) (z : Z) : Prop :=
  exists a lo hi, In a (accesses x q (m mod length (queue_of q))) /\ a_write a = w /\
  In (lo, hi) (spans_at a (m / length (queue_of q))) /\ (lo <= z < hi)%Z.

(** *** Boolean checks *)
Definition all_tasks (B : loop) (f : nat -> nat -> bool) : bool :=
  forallb (fun q => forallb (f q) (seq 0 (per_step B q))) (seq 0 (lqueues B)).

Definition counted_b (B : loop) : bool :=
  all_tasks B (fun q j => forallb (fun w => match w with (c, t, _) => (1 <=? t) && (t <=? total B c) end) (lwaits B q j)).

Definition enabled_b (P : schedule) (s : state) (q : nat) : bool :=
  (q <? queues P) && (s q <? len P q) && forallb (fun w => snd w <=? count P s (fst w)) (waits P q (s q)).

(** Replay: each name must be the next task of some queue, and that task must be enabled. *)
Fixpoint replay_b (P : schedule) (name : nat -> nat -> Z) (order : list Z) (s : state) : bool :=
  match order with
  | [] => forallb (fun q => Nat.eqb (s q) (len P q)) (seq 0 (queues P))
  | id :: rest =>
      match find (fun q => (s q <? len P q) && Z.eqb (name q (s q)) id) (seq 0 (queues P)) with
      | Some q => enabled_b P s q && replay_b P name rest (advance s q)
      | None => false
      end
  end.

(** Sparse clocks: [table] has one row an instance, in the order of task names, step by step. *)
Section Clocks.
Variable table : list (list (nat * Z)).

Definition lookup (n r : nat) : option Z := option_map snd (find (fun e => Nat.eqb (fst e) r) (nth n table [])).

Definition clock_p (q j r : nat) : option Z := if Nat.eqb r q then Some (Z.of_nat j) else lookup (t_id (task_at q j)) r.

Definition wait_covers_b (v : nat -> nat -> nat -> option Z) (q j r : nat) (x : Z) (w : nat * nat * bool) : bool :=
  match w with (c, t, e) =>
    all_tasks order_loop (fun p k => Nat.eqb (signals p k c) 0 || match plus v p k r with Some _ => true | None => false end)
    && Z.ltb (over_tasks order_loop (fun p k => (weight order_loop p k c * early order_loop v p k r x)%Z))
             (shift_of e * ztotal order_loop c + Z.of_nat t)
  end.

Definition entry_p (v : nat -> nat -> nat -> option Z) (q j r : nat) (x : Z) : bool :=
  (match j with
   | O => match plus v q (length (queue_of q) - 1) r with Some y => Z.leb x (y - lz order_loop r) | None => false end
   | S j' => match plus v q j' r with Some y => Z.leb x y | None => false end
   end)
  || existsb (wait_covers_b v q j r x) (t_waits (task_at q j)).

Definition periodic_b : bool :=
  all_tasks order_loop (fun q j => forallb (fun r =>
    Nat.eqb (length (queue_of r)) 0 ||
    (match plus clock_p q j r with Some y => Z.leb y (lz order_loop r) | None => true end
     && match clock_p q j r with Some x => entry_p clock_p q j r x | None => true end)) (seq 0 nq)).

(** Written-out clocks: instance [m] of queue [q] is task [m mod L] of step [m / L]. *)
Variable n_tasks : nat.
Definition clock_u (q m r : nat) : nat :=
  if Nat.eqb r q then m
  else if r <? nq then
    match lookup (m / length (queue_of q) * n_tasks + t_id (task_at q (m mod length (queue_of q)))) r with
    | Some x => Z.to_nat x | None => 0 end
  else 0.

Definition unrolled_b (U : nat) : bool :=
  let P := unroll order_loop U in
  forallb (fun q => forallb (fun m => forallb (fun r =>
    Nat.eqb (clock_u q m r) 0
    || ((0 <? m) && (clock_u q m r <=? MustOrder.plus clock_u q (m - 1) r))
    || existsb (fun w => low P clock_u (fst w) r (clock_u q m r) <? snd w) (waits P q m))
    (seq 0 nq)) (seq 0 (len P q))) (seq 0 nq).

(** *** Conflicts *)
Definition meet (s t : list (Z * Z)) : bool :=
  existsb (fun a => existsb (fun b => Z.ltb (Z.max (fst a) (fst b)) (Z.min (snd a) (snd b))) t) s.

(** An access stands still if it touches the same bytes in every step. *)
Definition still (a : access) : bool := match a_spans a with [_] => true | _ => false end.

(** Accesses that move are compared pair by pair. *)
Definition clash (x qa ja i qb jb k : nat) : bool :=
  existsb (fun a => existsb (fun b => negb (still a && still b) && (a_write a || a_write b) && meet (spans_at a i) (spans_at b k))
    (accesses x qb jb)) (accesses x qa ja).

(** [ord qa ja i qb jb k]: task [ja] of step [i] is over when task [jb] of step [k] starts, for different queues. *)
Variable ord : nat -> nat -> nat -> nat -> nat -> nat -> bool.

Definition pair_b (x qa ja qb jb : nat) : bool :=
  (forallb still (accesses x qa ja) && forallb still (accesses x qb jb))
  || forallb (fun i => forallb (fun d =>
       negb (clash x qa ja i qb jb (i + d)) || ord qa ja i qb jb (i + d) || (Nat.eqb d 0 && ord qb jb i qa ja i))
       (seq 0 (steps X - i))) (seq 0 (steps X)).

Definition pairs_b : bool :=
  all_tasks order_loop (fun qa ja => all_tasks order_loop (fun qb jb =>
    Nat.eqb qa qb || forallb (fun x => pair_b x qa ja qb jb) (seq 0 (assignments X)))).

(** Accesses that stand still are swept byte by byte, in replay order (Sweep.v).  One byte of each piece is enough: a piece starts
    where some range starts or ends. *)
Record item := Item { i_queue : nat; i_pos : nat; i_step : nat; i_write : bool }.

Definition later_item (a : item) : item := Item (i_queue a) (i_pos a) (S (i_step a)) (i_write a).

Definition valid (a : item) : bool := (i_queue a <? nq) && (i_pos a <? length (queue_of (i_queue a))).

Definition follows (a b : item) : bool :=
  valid a && valid b &&
  if Nat.eqb (i_queue a) (i_queue b)
  then (i_step a <? i_step b) || (Nat.eqb (i_step a) (i_step b) && (i_pos a <=? i_pos b))
  else ord (i_queue a) (i_pos a) (i_step a) (i_queue b) (i_pos b) (i_step b).

(** As [Sweep.check], but a write is compared with the last write too. *)
Definition look (m : memory item) (y : item) : bool :=
  match fst m with Some w => follows w y | None => true end && (negb (i_write y) || forallb (fun r => follows r y) (snd m)).

Fixpoint walk (m : memory item) (l : list item) : bool :=
  match l with [] => true | y :: l => look m y && walk (push item i_write m y) l end.

Fixpoint up_to_write (l : list item) : list item :=
  match l with [] => [] | y :: l => if i_write y then [y] else y :: up_to_write l end.

Definition holds (s : list (Z * Z)) (z : Z) : bool := existsb (fun a => Z.leb (fst a) z && Z.ltb z (snd a)) s.

Definition items (x : nat) (order : list (nat * nat)) (z : Z) : list item :=
  flat_map (fun p => map (fun a => Item (fst p) (snd p) 0 (a_write a))
    (filter (fun a => still a && holds (spans_at a 0) z) (accesses x (fst p) (snd p)))) order.

Definition cuts (x : nat) (order : list (nat * nat)) : list Z :=
  flat_map (fun p => flat_map (fun a => if still a then map fst (spans_at a 0) ++ map snd (spans_at a 0) else []) (accesses x (fst
    p) (snd p))) order.

(** [periodic]: the order depends on the distance of the steps only, so two rounds are enough. *)
Definition cell_b (periodic : bool) (l : list item) : bool :=
  if negb periodic then walk (None, []) (rounds item later_item (steps X) l)
  else walk (None, []) (if steps X <=? 1 then l else l ++ map later_item (up_to_write l)).

Definition complete_b (order : list (nat * nat)) : bool :=
  all_tasks order_loop (fun q j => existsb (fun p => Nat.eqb (fst p) q && Nat.eqb (snd p) j) order).

Definition cells_b (periodic : bool) (order : list (nat * nat)) : bool :=
  complete_b order &&
  forallb (fun x => forallb (fun z => cell_b periodic (items x order z)) (nodup Z.eq_dec (cuts x order))) (seq 0 (assignments X)).
End Clocks.

Definition ord_p (table : list (list (nat * Z))) (qa ja i qb jb k : nat) : bool :=
  match clock_p table qb jb qa with
  | Some x => Z.leb (Z.of_nat ja + 1) (x + (Z.of_nat k - Z.of_nat i) * Z.of_nat (length (queue_of qa))) && (i <=? k)
  | None => false
  end.

Definition ord_u (table : list (list (nat * Z))) (n : nat) (qa ja i qb jb k : nat) : bool :=
  i * length (queue_of qa) + ja <? clock_u table n qb (k * length (queue_of qb) + jb) qa.

(** *** Reading the certificate.  Nothing is proved about this part: whatever table comes out is checked. *)
Fixpoint ascending (l : list Z) : bool :=
  match l with a :: ((b :: _) as m) => Z.ltb a b && ascending m | _ => true end.

Fixpoint split_rows (off : list Z) (at_ : Z) (queue value : list Z) : option (list (list (Z * Z))) :=
  match off with
  | [] => match queue, value with [], [] => Some [] | _, _ => None end
  | o :: off =>
      if Z.ltb o at_ || Z.ltb (Z.of_nat (length queue)) (o - at_) then None
      else let n := Z.to_nat (o - at_) in
           match split_rows off o (skipn n queue) (skipn n value) with
           | Some rest => Some (combine (firstn n queue) (firstn n value) :: rest)
           | None => None
           end
  end.

Definition row_ok (copies : Z) (row : list (Z * Z)) : bool :=
  ascending (map fst row) &&
  forallb (fun e => Z.leb 0 (fst e) && Z.ltb (fst e) (Z.of_nat nq) &&
    let l := Z.of_nat (length (queue_of (Z.to_nat (fst e)))) in
    Z.ltb 0 l && Z.leb (snd e) (copies * l)) row.

Definition parse (C : certificate) (n : nat) : option (list (list (nat * Z))) :=
  let copies := Z.max 1 (c_unroll C) in
  let least := if Z.eqb (c_unroll C) 0 then (- (2 ^ 31) + 1)%Z else 0%Z in
  if Z.eqb (Z.of_nat (length (c_row C))) (copies * Z.of_nat n)
     && Z.eqb (hd (-1)%Z (c_off C)) 0 && Nat.eqb (length (c_queue C)) (length (c_value C))
     && forallb (fun v => Z.leb least v) (c_value C)
  then match split_rows (tl (c_off C)) 0 (c_queue C) (c_value C) with
       | Some rows =>
           if forallb (row_ok copies) rows && forallb (fun k => Z.leb 0 k && Z.ltb k (Z.of_nat (length rows))) (c_row C)
           then let rows := map (map (fun e => (Z.to_nat (fst e), snd e))) rows in
                Some (map (fun k => nth (Z.to_nat k) rows []) (c_row C))
           else None
       | None => None
       end
  else None.

(** Queue and position of each name of the replay. *)
Definition places (name : nat -> nat -> Z) (order : list Z) : list (nat * nat) :=
  flat_map (fun id => flat_map (fun q => flat_map (fun j => if Z.eqb (name q j) id then [(q, j)] else [])
    (seq 0 (length (queue_of q)))) (seq 0 nq)) order.

Definition n_all : nat := fold_right (fun l n => length l + n) 0 (task_lists X).

(** *** The checker *)
Definition check (C : certificate) : bool :=
  let n := n_all in
  Z.eqb (c_tasks C) (Z.of_nat n) && Z.eqb (c_queues C) (Z.of_nat nq) && (1 <=? steps X)
  && (Z.eqb (c_unroll C) 0 || (Z.leb (Z.of_nat (steps X)) (c_unroll C) && Z.leb (c_unroll C) (2 ^ 20)))
  && counted_b live_loop
  && replay_b (unroll live_loop 1) (fun q j => Z.of_nat (t_id (task_at q j))) (c_replay C) start
  && match parse C n with
     | None => false
     | Some table =>
         let order := places (fun q j => Z.of_nat (t_id (task_at q j))) (c_replay C) in
         if Z.eqb (c_unroll C) 0
         then periodic_b table && pairs_b (ord_p table) && cells_b (ord_p table) true order
         else let U := Z.to_nat (c_unroll C) in
              unrolled_b table n U && pairs_b (ord_u table n) && cells_b (ord_u table n) false order
     end.
End Input.
