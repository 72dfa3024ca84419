(** The certificate checker as a function, proved sound, and extracted to OCaml (proofs/extract).

    It reads tables (queues of tasks with waits, signals and the bytes they touch) and a certificate (a replay order and a sparse
    table of vector clocks, periodic or written out), as amk_core/schedule/certificate.py defines them.  If it accepts, then for
    every number of steps up to the declared one no run can get stuck and no two conflicting accesses can happen at the same time.

    Trusted, because it is outside: that the tables are read correctly, that the byte ranges listed here are the ones the tasks
    touch, and Coq's extraction. *)

From Coq Require Import Arith ZArith Lia List Bool.
From AMK Require Import Sums Semantics MustOrder Exact Events Loop OneStep Periodic Determinism.
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

Definition clash (x qa ja i qb jb k : nat) : bool :=
  existsb (fun a => existsb (fun b => (a_write a || a_write b) && meet (spans_at a i) (spans_at b k)) (accesses x qb jb)) (accesses x qa ja).

Definition still (x q j : nat) : bool := forallb (fun a => match a_spans a with [_] => true | _ => false end) (accesses x q j).

(** [ord qa ja i qb jb k]: task [ja] of step [i] is over when task [jb] of step [k] starts. *)
Variable ord : nat -> nat -> nat -> nat -> nat -> nat -> bool.
Definition pair_b (every : bool) (x qa ja qb jb : nat) : bool :=
  let one i k := negb (clash x qa ja i qb jb k) || ord qa ja i qb jb k || (Nat.eqb i k && ord qb jb k qa ja i) in
  if every && still x qa ja && still x qb jb
  then one 0 0 && ((steps X <=? 1) || one 0 1)
  else forallb (fun i => forallb (fun d => one i (i + d)) (seq 0 (steps X - i))) (seq 0 (steps X)).

Definition pairs_b (every : bool) : bool :=
  all_tasks order_loop (fun qa ja => all_tasks order_loop (fun qb jb =>
    Nat.eqb qa qb || forallb (fun x => pair_b every x qa ja qb jb) (seq 0 (assignments X)))).
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
         if Z.eqb (c_unroll C) 0 then periodic_b table && pairs_b (ord_p table) true
         else let U := Z.to_nat (c_unroll C) in unrolled_b table n U && pairs_b (ord_u table n) false
     end.

(** *** Soundness *)
Lemma all_tasks_true : forall B f, all_tasks B f = true -> forall q j, q < lqueues B -> j < per_step B q -> f q j = true.
Proof.
  intros B f H q j Hq Hj. unfold all_tasks in H. rewrite forallb_forall in H.
  assert (R : forallb (f q) (seq 0 (per_step B q)) = true) by (apply H, in_seq; lia).
  rewrite forallb_forall in R. apply R, in_seq. lia.
Qed.

Lemma counted_b_sound : forall B, counted_b B = true -> counted B.
Proof.
  intros B H q j c t e Hq Hj I. pose proof (all_tasks_true B _ H q j Hq Hj) as R. simpl in R.
  rewrite forallb_forall in R. specialize (R _ I). simpl in R. apply andb_true_iff in R. destruct R as (_ & R).
  now apply Nat.leb_le in R.
Qed.

Lemma enabled_b_sound : forall P s q, enabled_b P s q = true -> enabled P s q.
Proof.
  intros P s q H. unfold enabled_b in H. apply andb_true_iff in H. destruct H as (H & W). apply andb_true_iff in H.
  destruct H as (A & C). apply Nat.ltb_lt in A, C. split; [|split]; auto.
  intros c t I. rewrite forallb_forall in W. specialize (W _ I). simpl in W. now apply Nat.leb_le in W.
Qed.

Lemma replay_sound : forall P name order s, reach P s -> replay_b P name order s = true -> exists g, reach P g /\ complete P g.
Proof.
  intros P name order. induction order as [|id order IH]; intros s R H; simpl in H.
  - exists s. split; auto. intros q Hq. rewrite forallb_forall in H. specialize (H q).
    apply Nat.eqb_eq, H, in_seq. lia.
  - destruct (find _ _) as [q|]; [|discriminate]. apply andb_true_iff in H. destruct H as (E & H).
    apply (IH (advance s q)); auto. apply reach_step; auto. now apply enabled_b_sound.
Qed.

(** Deadlock: for every number of steps. *)
Theorem replay_decides : counted_b live_loop = true ->
  forall order name, replay_b (unroll live_loop 1) name order start = true -> forall T, deadlock_free (unroll live_loop T).
Proof.
  intros W order name H. apply one_step_suffices; [now apply counted_b_sound|].
  destruct (replay_sound _ name order start (reach_start _) H) as (g & R & C). now apply one_complete_run_suffices with (g := g).
Qed.

Lemma order_counted : counted live_loop -> counted order_loop.
Proof. intros W q j c t e Hq Hj I. apply (W q j c t e Hq Hj). simpl. apply in_app_iff. now left. Qed.

Lemma live_reach : forall T s, reach (unroll live_loop T) s -> reach (unroll order_loop T) s.
Proof.
  intros T. apply weaker_reach; auto. intros q i c th I. apply in_unrolled_waits in I. apply in_unrolled_waits.
  destruct I as (t & e & I & ->). exists t, e. split; [|reflexivity]. simpl in *. apply in_app_iff. now left.
Qed.

Lemma live_must : forall T qa ia qb ib, must (unroll order_loop T) qa ia qb ib -> must (unroll live_loop T) qa ia qb ib.
Proof.
  intros T. apply weaker_must; auto. intros q i c th I. apply in_unrolled_waits in I. apply in_unrolled_waits.
  destruct I as (t & e & I & ->). exists t, e. split; [|reflexivity]. simpl in *. apply in_app_iff. now left.
Qed.

(** In the live schedule a task with tagged reads starts only after their writers have ended. *)
Lemma zsum_only : forall n f k, (forall i, (i < n)%nat -> i <> k -> f i = 0%Z) -> (k < n)%nat -> zsum n f = f k.
Proof.
  induction n as [|n IH]; intros f k H Hk; [lia|]. simpl. destruct (Nat.eq_dec k n) as [->|N].
  - assert (zsum n f = 0%Z); [|lia]. assert (Z0 : forall m, (m <= n)%nat -> zsum m f = 0%Z); [|auto].
    induction m as [|m IHm]; simpl; intro Hm; auto. rewrite IHm by lia. rewrite H; lia.
  - rewrite (IH f k); try lia; [rewrite (H n); lia|]. intros. apply H; lia.
Qed.

Theorem live_waits_for_writers : counted_b live_loop = true -> forall T s q p k,
  reach (unroll live_loop T) s -> enabled (unroll live_loop T) s q ->
  In (p, k) (t_after (task_at q (s q mod length (queue_of q)))) -> p < nq -> k < length (queue_of p) ->
  s q / length (queue_of q) * length (queue_of p) + k < s p.
Proof.
  intros W T s q p k R En I Hp Hk. apply counted_b_sound in W.
  assert (Iw : In (tag_counter p k, 1, false) (lwaits live_loop q (s q mod per_step live_loop q))).
  { simpl. apply in_app_iff. right. apply in_map_iff. exists (p, k). auto. }
  assert (Hl : s q < T * per_step live_loop q) by apply En. destruct (position_lt live_loop q (s q) T Hl) as (Lq & Hj).
  assert (Hq : q < nq) by apply En. pose proof (W q _ _ _ _ Hq Hj Iw) as N1.
  pose proof (enabled_wait live_loop T s q _ _ _ En Iw) as Ew. rewrite (count_by_position live_loop T s R) in Ew.
  assert (Wt : forall x j, (x < nq)%nat -> weight live_loop x j (tag_counter p k) = if (Nat.eqb x p && Nat.eqb j k) then 1%Z else 0%Z).
  { intros x j Hx. unfold weight. simpl. unfold signals, tag_counter. assert (F : counters X + (k * nq + p) <? counters X = false) by (apply Nat.ltb_ge; lia).
    rewrite F. unfold tag_signal. replace (counters X + (k * nq + p) - counters X) with (k * nq + p) by lia.
    replace (k * nq + p) with (p + k * nq) by lia. rewrite Nat.mod_add, Nat.div_add, Nat.mod_small, Nat.div_small by lia. simpl.
    rewrite (Nat.eqb_sym p x), (Nat.eqb_sym k j). now destruct (Nat.eqb x p && Nat.eqb j k). }
  assert (C : over_tasks live_loop (fun x j => (weight live_loop x j (tag_counter p k) * Z.of_nat (times live_loop x (s x) j))%Z) =
              Z.of_nat (times live_loop p (s p) k)).
  { unfold over_tasks. rewrite (zsum_only _ _ p); auto.
    - rewrite (zsum_only _ _ k); auto; [rewrite Wt, !Nat.eqb_refl by auto; apply Z.mul_1_l|].
      intros j Hj' N. rewrite Wt by auto. apply Nat.eqb_neq in N. rewrite N, andb_false_r. apply Z.mul_0_l.
    - intros x Hx N. apply Nat.eqb_neq in N. assert (Z0 : forall m, zsum m (fun j => (weight live_loop x j (tag_counter p k) * Z.of_nat (times live_loop x (s x) j))%Z) = 0%Z); auto.
      induction m as [|m IH]; simpl; auto. rewrite IH, Wt, N by auto. apply Z.mul_0_l. }
  rewrite C in Ew. rewrite ztotal_total in Ew. simpl in Ew.
  set (i := s q / length (queue_of q)) in *. change (per_step live_loop p) with (length (queue_of p)) in *.
  assert (i < times live_loop p (s p) k) by nia. now apply (times_instance live_loop p (s p) k i).
Qed.

(** Periodic clocks. *)
Lemma wait_covers_b_sound : forall v q j r x w, wait_covers_b v q j r x w = true -> wait_covers order_loop v q j r x w.
Proof.
  intros v q j r x ((c, t), e) H. unfold wait_covers_b in H. apply andb_true_iff in H. destruct H as (A & C). split.
  - intros p k Hp Hk Wk. pose proof (all_tasks_true _ _ A p k Hp Hk) as E. simpl in E. apply orb_true_iff in E.
    destruct E as [E|E]; [apply Nat.eqb_eq in E; unfold weight in Wk; simpl in Wk; rewrite E in Wk; simpl in Wk; lia|].
    destruct (plus v p k r); congruence.
  - now apply Z.ltb_lt in C.
Qed.

Lemma entry_p_sound : forall v q j r x, entry_p v q j r x = true -> periodic_entry_ok order_loop v q j r x.
Proof.
  intros v q j r x H. unfold entry_p in H. apply orb_true_iff in H. destruct H as [H|H].
  - destruct j as [|j].
    + destruct (plus v q (length (queue_of q) - 1) r) as [y|] eqn:P; [|discriminate]. apply Z.leb_le in H.
      right. left. exists y. auto.
    + destruct (plus v q j r) as [y|] eqn:P; [|discriminate]. apply Z.leb_le in H. left. exists y.
      split; [lia|]. split; auto. now replace (S j - 1) with j by lia.
  - apply existsb_exists in H. destruct H as (w & I & H). right. right. exists w. split; auto. now apply wait_covers_b_sound.
Qed.

Lemma periodic_b_sound : forall table, periodic_b table = true -> periodic_ok order_loop (clock_p table).
Proof.
  intros table H q j r Hq Hj Hr Lr. pose proof (all_tasks_true _ _ H q j Hq Hj) as R. simpl in R. rewrite forallb_forall in R.
  specialize (R r). assert (I : In r (seq 0 nq)) by (apply in_seq; simpl in Hr; lia). specialize (R I).
  apply orb_true_iff in R. destruct R as [R|R]; [apply Nat.eqb_eq in R; simpl in Lr; lia|].
  apply andb_true_iff in R. destruct R as (A & C). split.
  - intros y P. rewrite P in A. now apply Z.leb_le in A.
  - intros x V. rewrite V in C. now apply entry_p_sound.
Qed.

(** Written-out clocks. *)
Lemma unrolled_b_sound : forall table n U, unrolled_b table n U = true -> local_ok (unroll order_loop U) (clock_u table n).
Proof.
  intros table n U H q m r Hq Hm. unfold unrolled_b in H. rewrite forallb_forall in H.
  assert (Iq : In q (seq 0 nq)) by (apply in_seq; simpl in Hq; lia). specialize (H q Iq). rewrite forallb_forall in H.
  specialize (H m). assert (Im : In m (seq 0 (len (unroll order_loop U) q))) by (apply in_seq; lia). specialize (H Im).
  rewrite forallb_forall in H. unfold entry_ok. destruct (lt_dec r nq) as [Hr|Hr].
  - assert (Ir : In r (seq 0 nq)) by (apply in_seq; lia). specialize (H r Ir). apply orb_true_iff in H. destruct H as [H|H].
    + apply orb_true_iff in H. destruct H as [H|H]; [left; now apply Nat.eqb_eq in H|].
      apply andb_true_iff in H. destruct H as (A & C). apply Nat.ltb_lt in A. apply Nat.leb_le in C. right. left. auto.
    + apply existsb_exists in H. destruct H as ((c, t) & I & H). apply Nat.ltb_lt in H. right. right. exists c, t. auto.
  - left. unfold clock_u. simpl in Hq. destruct (Nat.eqb r q) eqn:E; [apply Nat.eqb_eq in E; lia|].
    destruct (r <? nq) eqn:E2; auto. apply Nat.ltb_lt in E2. contradiction.
Qed.

(** What an ordering test has to mean. *)
Definition ord_means (ord : nat -> nat -> nat -> nat -> nat -> nat -> bool) := forall T qa ja i qb jb k, T <= steps X ->
  qa < nq -> qb < nq -> ja < length (queue_of qa) -> jb < length (queue_of qb) -> qa <> qb -> k < T -> ord qa ja i qb jb k = true ->
  must (unroll order_loop T) qa (i * length (queue_of qa) + ja) qb (k * length (queue_of qb) + jb).

Lemma ord_p_sound : forall table, periodic_b table = true -> ord_means (ord_p table).
Proof.
  intros table H T qa ja i qb jb k _ Ha Hb Ja Jb N _ O. apply periodic_b_sound in H. unfold ord_p in O.
  destruct (clock_p table qb jb qa) as [x|] eqn:V; [|discriminate]. apply andb_true_iff in O. destruct O as (A & C).
  apply Z.leb_le in A. apply Nat.leb_le in C. replace k with (i + (k - i))%nat by lia.
  apply (periodic_sound order_loop (clock_p table) H qa ja qb jb (k - i)); auto. exists x. split; auto.
  unfold lz. simpl. nia.
Qed.

Lemma ord_u_sound : forall table n U, steps X <= U -> unrolled_b table n U = true -> ord_means (ord_u table n).
Proof.
  intros table n U HU H T qa ja i qb jb k HT Ha Hb Ja Jb N Hk O. apply unrolled_b_sound in H. apply Nat.ltb_lt in O.
  assert (M := certificate_sound _ _ H qa (i * length (queue_of qa) + ja) qb (k * length (queue_of qb) + jb) O).
  intros s R En E. apply M; auto; [apply unroll_reach_longer with (T := T)|apply unroll_enabled_longer with (T := T)]; auto; lia.
Qed.

(** Conflicts. *)
Lemma meet_true : forall s t lo hi lo' hi' z, In (lo, hi) s -> In (lo', hi') t -> (lo <= z < hi)%Z -> (lo' <= z < hi')%Z -> meet s t = true.
Proof.
  intros s t lo hi lo' hi' z I I' Hz Hz'. apply existsb_exists. exists (lo, hi). split; auto.
  apply existsb_exists. exists (lo', hi'). split; auto. simpl. apply Z.ltb_lt. lia.
Qed.

Lemma clash_true : forall x qa ma qb mb z wa wb, touches wa x qa ma z -> touches wb x qb mb z -> wa || wb = true ->
  clash x qa (ma mod length (queue_of qa)) (ma / length (queue_of qa)) qb (mb mod length (queue_of qb)) (mb / length (queue_of qb)) = true.
Proof.
  intros x qa ma qb mb z wa wb (a & lo & hi & Ia & Wa & Sa & Za) (b & lo' & hi' & Ib & Wb & Sb & Zb) W.
  apply existsb_exists. exists a. split; auto. apply existsb_exists. exists b. split; auto.
  rewrite Wa, Wb, W. simpl. now apply meet_true with (1 := Sa) (2 := Sb) (z := z).
Qed.

Lemma still_spans : forall x q j a i k, still x q j = true -> In a (accesses x q j) -> spans_at a i = spans_at a k.
Proof.
  intros x q j a i k H I. unfold still in H. rewrite forallb_forall in H. specialize (H a I). unfold spans_at.
  destruct (a_spans a) as [|s [|]]; congruence.
Qed.

Lemma still_clash : forall x qa ja qb jb i k i' k', still x qa ja = true -> still x qb jb = true ->
  clash x qa ja i qb jb k = clash x qa ja i' qb jb k'.
Proof.
  intros x qa ja qb jb i k i' k' Sa Sb. unfold clash. apply eq_true_iff_eq. rewrite !existsb_exists.
  split; intros (a & Ia & H); exists a; (split; auto); rewrite existsb_exists in *; destruct H as (b & Ib & H); exists b; (split; auto);
    [rewrite (still_spans x qa ja a i' i Sa Ia), (still_spans x qb jb b k' k Sb Ib)|
     rewrite (still_spans x qa ja a i i' Sa Ia), (still_spans x qb jb b k k' Sb Ib)]; auto.
Qed.

(** [every]: the order depends on the distance of the steps only, and larger distances follow. *)
Definition distance_only (ord : nat -> nat -> nat -> nat -> nat -> nat -> bool) := forall qa ja qb jb i k,
  i <= k -> ord qa ja 0 qb jb (k - i) = true -> ord qa ja i qb jb k = true.
Definition grows (ord : nat -> nat -> nat -> nat -> nat -> nat -> bool) := forall qa ja qb jb k,
  ord qa ja 0 qb jb k = true -> ord qa ja 0 qb jb (S k) = true.

Lemma ord_p_distance : forall table, distance_only (ord_p table).
Proof.
  intros table qa ja qb jb i k Le H. unfold ord_p in *. destruct (clock_p table qb jb qa) as [x|]; auto.
  apply andb_true_iff in H. destruct H as (A & _). apply andb_true_iff. split; [|now apply Nat.leb_le].
  apply Z.leb_le in A. apply Z.leb_le. nia.
Qed.

Lemma ord_p_grows : forall table, grows (ord_p table).
Proof.
  intros table qa ja qb jb k H. unfold ord_p in *. destruct (clock_p table qb jb qa) as [x|]; auto.
  apply andb_true_iff in H. destruct H as (A & _). apply andb_true_iff. split; auto.
  apply Z.leb_le in A. apply Z.leb_le. nia.
Qed.

Lemma pair_b_sound : forall ord every x qa ja qb jb, (every = true -> distance_only ord /\ grows ord) ->
  pair_b ord every x qa ja qb jb = true -> forall i k, i <= k -> k < steps X -> clash x qa ja i qb jb k = true ->
  ord qa ja i qb jb k = true \/ (i = k /\ ord qb jb k qa ja i = true).
Proof.
  intros ord every x qa ja qb jb Ev H i k Le Lt Cl. unfold pair_b in H.
  destruct (every && still x qa ja && still x qb jb) eqn:St.
  - apply andb_true_iff in St. destruct St as (St & Sb). apply andb_true_iff in St. destruct St as (Every & Sa).
    destruct (Ev Every) as (Dist & Grow). apply andb_true_iff in H. destruct H as (H0 & H1).
    destruct (Nat.eq_dec i k) as [->|N].
    + rewrite (still_clash x qa ja qb jb k k 0 0 Sa Sb) in Cl. rewrite Cl in H0. simpl in H0. apply orb_true_iff in H0.
      destruct H0 as [H0|H0]; [left|right; split; auto]; apply Dist; auto; now rewrite Nat.sub_diag.
    + left. apply orb_true_iff in H1. destruct H1 as [H1|H1]; [apply Nat.leb_le in H1; lia|].
      rewrite (still_clash x qa ja qb jb i k 0 1 Sa Sb) in Cl. rewrite Cl in H1. simpl in H1. rewrite orb_false_r in H1.
      apply Dist; auto. assert (G : forall d, ord qa ja 0 qb jb (S d) = true).
      { induction d as [|d IH]; auto. }
      replace (k - i) with (S (k - i - 1)) by lia. apply G.
  - rewrite forallb_forall in H. assert (Ii : In i (seq 0 (steps X))) by (apply in_seq; lia). specialize (H i Ii).
    rewrite forallb_forall in H. assert (Id : In (k - i) (seq 0 (steps X - i))) by (apply in_seq; lia). specialize (H _ Id).
    replace (i + (k - i)) with k in H by lia. rewrite Cl in H. simpl in H. apply orb_true_iff in H. destruct H as [H|H]; auto.
    apply andb_true_iff in H. destruct H as (E & H). apply Nat.eqb_eq in E. auto.
Qed.

Lemma clash_sym : forall x qa ja i qb jb k, clash x qa ja i qb jb k = clash x qb jb k qa ja i.
Proof.
  assert (Half : forall x qa ja i qb jb k, clash x qa ja i qb jb k = true -> clash x qb jb k qa ja i = true).
  { intros x qa ja i qb jb k H. unfold clash in *. rewrite existsb_exists in *. destruct H as (a & Ia & H).
    rewrite existsb_exists in H. destruct H as (b & Ib & H). exists b. split; auto. rewrite existsb_exists. exists a. split; auto.
    apply andb_true_iff in H. destruct H as (W & M). rewrite orb_comm, W. simpl. unfold meet in *. rewrite existsb_exists in *.
    destruct M as (s & Is & M). rewrite existsb_exists in M. destruct M as (t & It & M). exists t. split; auto.
    rewrite existsb_exists. exists s. split; auto. now rewrite Z.max_comm, Z.min_comm. }
  intros. apply eq_true_iff_eq. split; apply Half.
Qed.

Theorem pairs_b_sound : forall ord every, (every = true -> distance_only ord /\ grows ord) -> ord_means ord -> pairs_b ord every = true ->
  forall T x, T <= steps X -> x < assignments X ->
  race_free (unroll live_loop T) Z (touches false x) (touches true x).
Proof.
  intros ord every Ev Means H T x HT Hx. apply ordered_is_race_free. intros qa ma qb mb Ra Rb N C.
  simpl in Ra, Rb. destruct Ra as (Ha & Ma), Rb as (Hb & Mb).
  assert (Clash : clash x qa (ma mod length (queue_of qa)) (ma / length (queue_of qa)) qb (mb mod length (queue_of qb)) (mb / length (queue_of qb)) = true).
  { destruct C as (z & [(Wa & [Rb|Wb])|(Ra & Wb)]);
      [apply (clash_true x qa ma qb mb z true false)|apply (clash_true x qa ma qb mb z true true)|apply (clash_true x qa ma qb mb z false true)]; auto. }
  destruct (position_lt order_loop qa ma T Ma) as (La & Ja). destruct (position_lt order_loop qb mb T Mb) as (Lb & Jb).
  change (per_step order_loop qa) with (length (queue_of qa)) in *. change (per_step order_loop qb) with (length (queue_of qb)) in *.
  set (ja := ma mod length (queue_of qa)) in *. set (i := ma / length (queue_of qa)) in *.
  set (jb := mb mod length (queue_of qb)) in *. set (k := mb / length (queue_of qb)) in *.
  assert (Ea : ma = i * length (queue_of qa) + ja) by (pose proof (Nat.div_mod ma (length (queue_of qa))); lia).
  assert (Eb : mb = k * length (queue_of qb) + jb) by (pose proof (Nat.div_mod mb (length (queue_of qb))); lia).
  assert (Hi : i < T) by nia. assert (Hk : k < T) by nia.
  assert (Pair : forall qa ja qb jb, qa < nq -> ja < length (queue_of qa) -> qb < nq -> jb < length (queue_of qb) -> qa <> qb ->
                 pair_b ord every x qa ja qb jb = true).
  { intros a j b l A1 A2 A3 A4 A5. pose proof (all_tasks_true _ _ H a j A1 A2) as R. simpl in R.
    pose proof (all_tasks_true _ _ R b l A3 A4) as R'. simpl in R'. apply orb_true_iff in R'.
    destruct R' as [R'|R']; [apply Nat.eqb_eq in R'; contradiction|]. rewrite forallb_forall in R'. apply R', in_seq. lia. }
  assert (N' : qb <> qa) by auto.
  rewrite Ea, Eb. destruct (le_lt_dec i k) as [Le|Gt].
  - destruct (pair_b_sound ord every x qa ja qb jb Ev (Pair qa ja qb jb Ha Ja Hb Jb N) i k Le) as [O|(E & O)]; auto; [lia| |].
    + left. apply live_must. now apply (Means T).
    + right. apply live_must. now apply (Means T).
  - rewrite clash_sym in Clash.
    destruct (pair_b_sound ord every x qb jb qa ja Ev (Pair qb jb qa ja Hb Jb Ha Ja N') k i) as [O|(E & O)]; auto; [lia|lia| |lia].
    right. apply live_must. now apply (Means T).
Qed.

(** *** The theorem *)
Theorem checker_sound : forall C, check C = true -> forall T, T <= steps X ->
  deadlock_free (unroll live_loop T) /\
  forall x, x < assignments X -> race_free (unroll live_loop T) Z (touches false x) (touches true x).
Proof.
  intros C H T HT. unfold check in H. repeat (apply andb_true_iff in H; destruct H as (H & ?)).
  match goal with R : replay_b _ _ _ _ = true, W : counted_b _ = true |- _ => pose proof (replay_decides W _ _ R T) as Live end.
  split; auto. intros x Hx. destruct (parse C n_all) as [table|]; [|discriminate].
  destruct (Z.eqb (c_unroll C) 0) eqn:E.
  - match goal with R : _ && pairs_b _ _ = true |- _ => apply andb_true_iff in R; destruct R as (Per & Pairs) end.
    apply (pairs_b_sound (ord_p table) true); auto; [|now apply ord_p_sound].
    intros _. split; [apply ord_p_distance|apply ord_p_grows].
  - match goal with R : _ && pairs_b _ _ = true |- _ => apply andb_true_iff in R; destruct R as (Unr & Pairs) end.
    match goal with R : false || _ = true |- _ => simpl in R; apply andb_true_iff in R; destruct R as (Long & _); apply Z.leb_le in Long end.
    apply (pairs_b_sound (ord_u table n_all) false); auto; [discriminate|].
    apply (ord_u_sound table n_all (Z.to_nat (c_unroll C))); auto. lia.
Qed.
End Input.
