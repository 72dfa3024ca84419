(** Periodic clocks: one finite table that is a must-order for every number of steps, without unrolling.

    [v q j r = Some x] claims: before task [j] of step [i] of queue [q] starts, queue [r] has completed [i * L_r + x] tasks, for
    every step [i] of a loop of any length.  [None] claims nothing (minus infinity).  The table is untrusted: [periodic_ok]
    checks every entry against the task before and against the clocks of the signalling tasks.  Queues may overtake each other
    by any number of steps. *)

From Coq Require Import Arith ZArith Lia List Bool.
From AMK Require Import Sums Semantics MustOrder Loop.
Import ListNotations.
Local Open Scope Z_scope.

Fixpoint zsum (n : nat) (f : nat -> Z) : Z := match n with O => 0 | S k => zsum k f + f k end.

Lemma zsum_le : forall n f g, (forall i, (i < n)%nat -> f i <= g i) -> zsum n f <= zsum n g.
Proof.
  induction n as [|n IH]; simpl; intros f g H; [lia|].
  assert (zsum n f <= zsum n g) by (apply IH; intros; apply H; lia). assert (f n <= g n) by (apply H; lia). lia.
Qed.

Lemma zsum_add : forall n f g, zsum n (fun i => f i + g i) = zsum n f + zsum n g.
Proof. induction n as [|n IH]; simpl; intros f g; [|rewrite IH]; lia. Qed.

Lemma zsum_scale : forall n k f, zsum n (fun i => k * f i) = k * zsum n f.
Proof. induction n as [|n IH]; simpl; intros k f; [|rewrite IH]; lia. Qed.

Lemma zsum_of_nat : forall n f, Z.of_nat (sum n f) = zsum n (fun i => Z.of_nat (f i)).
Proof. induction n as [|n IH]; simpl; intro f; auto. rewrite Nat2Z.inj_add, IH. auto. Qed.

(** [a / b], rounded up. *)
Definition cdiv (a b : Z) : Z := - ((- a) / b).

Lemma cdiv_gt : forall a b k, 0 < b -> k * b < a -> k < cdiv a b.
Proof. intros a b k Hb H. unfold cdiv. assert ((- a) / b < - k); [|lia]. apply Z.div_lt_upper_bound; lia. Qed.

Lemma cdiv_below : forall a b, 0 < b -> (cdiv a b - 1) * b < a.
Proof. intros a b Hb. unfold cdiv. pose proof (Z.mul_succ_div_gt (- a) b Hb). nia. Qed.

Section Periodic.
Variable B : loop.
Notation Q := (lqueues B).
Notation L := (per_step B).
Definition lz (q : nat) : Z := Z.of_nat (L q).
Definition weight (q j c : nat) : Z := Z.of_nat (lsignal B q j c).
Definition over_tasks (g : nat -> nat -> Z) : Z := zsum Q (fun q => zsum (L q) (fun j => g q j)).
Definition ztotal (c : nat) : Z := over_tasks (fun q j => weight q j c).
Definition shift_of (before : bool) : Z := if before then -1 else 0.

Lemma ztotal_total : forall c, ztotal c = Z.of_nat (total B c).
Proof.
  intro c. unfold ztotal, over_tasks, total. rewrite zsum_of_nat. apply Z.le_antisymm; apply zsum_le; intros q _;
    rewrite zsum_of_nat; apply zsum_le; intros; unfold weight; lia.
Qed.

(** *** Counting by position: how often position [j] is complete when the queue has completed [m] tasks. *)
Definition times (q m j : nat) : nat := ((m + L q - 1 - j) / L q)%nat.

Lemma times_is : forall q i p j, (p < L q)%nat -> (j < L q)%nat ->
  times q (i * L q + p) j = (i + if (j <? p)%nat then 1 else 0)%nat.
Proof.
  intros q i p j Hp Hj. unfold times. destruct (j <? p)%nat eqn:E.
  - apply Nat.ltb_lt in E. symmetry. apply (Nat.div_unique _ _ _ (p - 1 - j)); lia.
  - apply Nat.ltb_ge in E. symmetry. apply (Nat.div_unique _ _ _ (p + L q - 1 - j)); lia.
Qed.

Lemma sum_by_position : forall q m f, (0 < L q)%nat ->
  sum m (fun k => f (k mod L q)%nat) = sum (L q) (fun j => f j * times q m j)%nat.
Proof.
  intros q m f Lq. pose proof (Nat.div_mod m (L q)) as D. set (i := (m / L q)%nat) in *. set (p := (m mod L q)%nat) in *.
  assert (Hp : (p < L q)%nat) by (apply Nat.mod_upper_bound; lia).
  replace m with (i * L q + p)%nat by lia. rewrite sum_steps_more.
  rewrite (sum_ext (L q) (fun j => f j * times q (i * L q + p) j)%nat
                   (fun j => i * f j + (if (j <? p)%nat then f j else 0))%nat).
  - rewrite sum_add, sum_scale. f_equal. apply Nat.le_antisymm.
    + apply Nat.le_trans with (sum p (fun j => if (j <? p)%nat then f j else 0%nat)).
      * apply Nat.eq_le_incl, sum_ext. intros j Hj. assert (j <? p = true)%nat as -> by (apply Nat.ltb_lt; auto).
        rewrite Nat.mod_small; auto. lia.
      * apply sum_longer. lia.
    + apply Nat.le_trans with (sum p f); [apply sum_select; intros j _ H; now apply Nat.ltb_lt|].
      apply Nat.eq_le_incl, sum_ext. intros j Hj. rewrite Nat.mod_small; auto. lia.
  - intros j Hj. rewrite times_is by auto. destruct (j <? p)%nat; lia.
Qed.

Lemma count_by_position : forall T s, reach (unroll B T) s -> forall c,
  Z.of_nat (count (unroll B T) s c) = over_tasks (fun q j => weight q j c * Z.of_nat (times q (s q) j)).
Proof.
  intros T s R c. unfold count, over_tasks. simpl. rewrite zsum_of_nat.
  assert (E : forall q, (q < Q)%nat -> Z.of_nat (sum (s q) (fun m => lsignal B q (m mod L q) c)) =
                 zsum (L q) (fun j => weight q j c * Z.of_nat (times q (s q) j))).
  { intros q Hq. destruct (Nat.eq_dec (L q) 0) as [Z0|NZ].
    - pose proof (reach_len _ s R q Hq) as Le. simpl in Le. rewrite Z0 in *. replace (s q) with O by lia. auto.
    - rewrite (sum_by_position q (s q) (fun j => lsignal B q j c)) by lia. rewrite zsum_of_nat.
      apply Z.le_antisymm; apply zsum_le; intros; unfold weight; nia. }
  apply Z.le_antisymm; apply zsum_le; intros q Hq; rewrite (E q Hq); lia.
Qed.

(** Position [k] is complete [n + 1] times exactly if instance [n] of it is. *)
Lemma times_reached : forall q m j n, (j < L q)%nat -> n * lz q + Z.of_nat j < Z.of_nat m -> n < Z.of_nat (times q m j).
Proof.
  intros q m j n Hj H. unfold times. rewrite Nat2Z.inj_div. apply Z.lt_le_trans with (n + 1); [lia|].
  unfold lz in H. apply Z.div_le_lower_bound; lia.
Qed.

Lemma times_instance : forall q m j n, (j < L q)%nat -> (n < times q m j)%nat -> (n * L q + j < m)%nat.
Proof.
  intros q m j n Hj H. unfold times in H. pose proof (Nat.mul_div_le (m + L q - 1 - j) (L q)).
  assert (L q * S n <= m + L q - 1 - j)%nat by nia. nia.
Qed.

Lemma instance_of : forall q n j, (j < L q)%nat -> ((n * L q + j) / L q = n /\ (n * L q + j) mod L q = j)%nat.
Proof.
  intros q n j Hj. split.
  - symmetry. apply (Nat.div_unique _ _ _ j); lia.
  - symmetry. apply (Nat.mod_unique _ _ n); lia.
Qed.

(** What an enabled task knows about a counter it waits for. *)
Lemma enabled_wait : forall T s q c t e, enabled (unroll B T) s q ->
  In (c, t, e) (lwaits B q (s q mod L q)) ->
  (Z.of_nat (s q / L q) + shift_of e) * ztotal c + Z.of_nat t <= Z.of_nat (count (unroll B T) s c).
Proof.
  intros T s q c t e (_ & _ & W) I. rewrite ztotal_total.
  assert (In (c, threshold B (s q / L q) c t e) (waits (unroll B T) q (s q))) as I' by (apply in_unrolled_waits; eauto).
  pose proof (W _ _ I') as H. unfold threshold in H. unfold shift_of.
  destruct e; nia.
Qed.

(** *** The local check *)
Section Table.
Variable v : nat -> nat -> nat -> option Z.

(** What holds when the task has ended. *)
Definition plus (q j r : nat) : option Z :=
  if Nat.eqb r q
  then Some (match v q j r with Some x => Z.max x (Z.of_nat j + 1) | None => Z.of_nat j + 1 end)
  else v q j r.

(** How many instances of producer [p, k], counted from this step on, can be complete before queue [r] is [x] tasks into it. *)
Definition early (p k r : nat) (x : Z) : Z := match plus p k r with Some y => cdiv (x - y) (lz r) | None => 0 end.

Definition wait_covers (q j r : nat) (x : Z) (w : nat * nat * bool) : Prop :=
  match w with (c, t, e) =>
    (forall p k, (p < Q)%nat -> (k < L p)%nat -> weight p k c <> 0 -> plus p k r <> None)
    /\ over_tasks (fun p k => weight p k c * early p k r x) < shift_of e * ztotal c + Z.of_nat t
  end.

Definition periodic_entry_ok (q j r : nat) (x : Z) : Prop :=
     (exists y, (0 < j)%nat /\ plus q (j - 1) r = Some y /\ x <= y)
  \/ (exists y, j = O /\ plus q (L q - 1) r = Some y /\ x <= y - lz r)
  \/ (exists w, In w (lwaits B q j) /\ wait_covers q j r x w).

Definition periodic_ok := forall q j r, (q < Q)%nat -> (j < L q)%nat -> (r < Q)%nat -> (0 < L r)%nat ->
  (forall y, plus q j r = Some y -> y <= lz r) /\ (forall x, v q j r = Some x -> periodic_entry_ok q j r x).

(** *** Soundness *)
Definition honoured (s : state) := forall q m r y, (q < Q)%nat -> (m < s q)%nat -> (r < Q)%nat -> (0 < L r)%nat ->
  plus q (m mod L q) r = Some y -> Z.of_nat (m / L q) * lz r + y <= Z.of_nat (s r).

Lemma clock_at_start : periodic_ok -> forall T s, reach (unroll B T) s -> honoured s -> forall q r x,
  enabled (unroll B T) s q -> (r < Q)%nat -> (0 < L r)%nat -> v q (s q mod L q)%nat r = Some x ->
  Z.of_nat (s q / L q) * lz r + x <= Z.of_nat (s r).
Proof.
  intros Ok T s R H q r x En Hr Lr Hv. assert (Hq : (q < Q)%nat) by apply En.
  assert (Hl : (s q < T * L q)%nat) by apply En. destruct (position_lt B q (s q) T Hl) as (Lq & Hj).
  pose proof (Nat.div_mod (s q) (L q)) as D.
  pose proof (enabled_wait T s q) as Waits.
  set (j := (s q mod L q)%nat) in *. set (i := (s q / L q)%nat) in *.
  destruct (Ok q j r Hq Hj Hr Lr) as (_ & C).
  destruct (C x Hv) as [(y & J & P & X)|[(y & J & P & X)|(((c, t), e) & I & NN & Low)]].
  - (* the task before, in this step *)
    assert (E : (s q - 1 = i * L q + (j - 1))%nat) by lia.
    destruct (instance_of q i (j - 1)) as (E1 & E2); [lia|].
    pose proof (H q (s q - 1)%nat r y Hq) as K. rewrite E, E1, E2 in K.
    assert (Z.of_nat i * lz r + y <= Z.of_nat (s r)) by (apply K; auto; lia). lia.
  - (* the last task of the step before *)
    destruct (Nat.eq_dec i 0) as [I0|I0].
    + destruct (Ok q (L q - 1)%nat r Hq) as (Bd & _); auto; [lia|]. pose proof (Bd y P). rewrite I0. lia.
    + assert (E : (s q - 1 = (i - 1) * L q + (L q - 1))%nat) by nia.
      destruct (instance_of q (i - 1) (L q - 1)) as (E1 & E2); [lia|].
      pose proof (H q (s q - 1)%nat r y Hq) as K. rewrite E, E1, E2 in K.
      assert (Z.of_nat (i - 1) * lz r + y <= Z.of_nat (s r)) by (apply K; auto; lia).
      replace (Z.of_nat i) with (Z.of_nat (i - 1) + 1) by lia. lia.
  - (* a wait *)
    destruct (Z_le_gt_dec (Z.of_nat i * lz r + x) (Z.of_nat (s r))) as [|Gt]; auto. exfalso.
    pose proof (Waits c t e En I) as WC. rewrite (count_by_position T s R c) in WC.
    enough (over_tasks (fun p k => weight p k c * Z.of_nat (times p (s p) k)) <=
            Z.of_nat i * ztotal c + over_tasks (fun p k => weight p k c * early p k r x)) by lia.
    unfold ztotal, over_tasks. rewrite <- zsum_scale, <- zsum_add. apply zsum_le. intros p Hp.
    rewrite <- zsum_scale, <- zsum_add. apply zsum_le. intros k Hk.
    assert (W0 : 0 <= weight p k c) by (unfold weight; lia).
    destruct (Z.eq_dec (weight p k c) 0) as [->|NZ]; [lia|].
    enough (Z.of_nat (times p (s p) k) <= Z.of_nat i + early p k r x) by nia.
    unfold early. destruct (plus p k r) as [y|] eqn:P; [|exfalso; now apply (NN p k)].
    destruct (Ok p k r Hp Hk Hr Lr) as (Bd & _). pose proof (Bd y P) as By.
    assert (Lz : 0 < lz r) by (unfold lz; lia).
    destruct (Nat.eq_dec (times p (s p) k) 0) as [T0|T0].
    + rewrite T0. simpl. assert (- Z.of_nat i - 1 < cdiv (x - y) (lz r)); [|lia]. apply cdiv_gt; auto. nia.
    + set (n := (times p (s p) k - 1)%nat). assert (En' : (n < times p (s p) k)%nat) by lia.
      pose proof (times_instance p (s p) k n Hk En') as M. destruct (instance_of p n k Hk) as (E1 & E2).
      pose proof (H p (n * L p + k)%nat r y Hp M Hr Lr) as K. rewrite E1, E2 in K. specialize (K P).
      assert (Z.of_nat n - Z.of_nat i < cdiv (x - y) (lz r)); [|lia]. apply cdiv_gt; auto. nia.
Qed.

Lemma always_honoured : periodic_ok -> forall T s, reach (unroll B T) s -> honoured s.
Proof.
  intros Ok T s R. induction R as [|s u R IH E|s q R IH En]; intros p m r y Hp Hm Hr Lr P.
  - unfold start in Hm. lia.
  - rewrite <- E in *. eauto.
  - pose proof (below_advance s q r) as Adv. destruct (Nat.eq_dec p q) as [->|N].
    + rewrite advance_same in Hm. destruct (Nat.eq_dec m (s q)) as [->|].
      * pose proof (clock_at_start Ok T s R IH q r) as K. unfold plus in P. destruct (Nat.eqb r q) eqn:Er.
        -- apply Nat.eqb_eq in Er. subst r. rewrite advance_same. injection P as <-. unfold lz.
           pose proof (Nat.div_mod (s q) (L q)) as D.
           destruct (v q (s q mod L q)%nat q) as [x|]; [pose proof (K x En Hr Lr eq_refl) as Kx; unfold lz in Kx|]; nia.
        -- pose proof (K y En Hr Lr P). lia.
      * pose proof (IH q m r y Hp). assert (Z.of_nat (m / L q) * lz r + y <= Z.of_nat (s r)); [|lia].
        apply H; auto. lia.
    + rewrite advance_other in Hm by auto. pose proof (IH p m r y Hp Hm Hr Lr P). lia.
Qed.

Definition covers (q j r : nat) (y : Z) := exists x, v q j r = Some x /\ y <= x.

Theorem periodic_clocks_sound : periodic_ok -> forall T s q i j r x,
  reach (unroll B T) s -> enabled (unroll B T) s q -> (j < L q)%nat -> s q = (i * L q + j)%nat ->
  (r < Q)%nat -> (0 < L r)%nat -> v q j r = Some x -> Z.of_nat i * lz r + x <= Z.of_nat (s r).
Proof.
  intros Ok T s q i j r x R En Hj E Hr Lr Hv. destruct (instance_of q i j Hj) as (E1 & E2). rewrite <- E in E1, E2.
  rewrite <- E1. apply clock_at_start with (T := T) (q := q); auto; [now apply always_honoured with (T := T)|now rewrite E2].
Qed.
End Table.

(** Task [ja] of every step [i] is complete when task [jb], [k] steps later, may start: in loops of every length. *)
Definition loop_must (qa ja qb jb k : nat) := forall T i, must (unroll B T) qa (i * L qa + ja) qb ((i + k) * L qb + jb).

(** *** An accepted table is a must-order for every number of steps. *)
Theorem periodic_sound : forall v, periodic_ok v -> forall qa ja qb jb k, (qa < Q)%nat -> (ja < L qa)%nat -> (jb < L qb)%nat ->
  covers v qb jb qa (Z.of_nat ja + 1 - Z.of_nat k * lz qa) -> loop_must qa ja qb jb k.
Proof.
  intros v Ok qa ja qb jb k Ha Ja Jb (x & Hv & C) T i s R En E.
  pose proof (periodic_clocks_sound v Ok T s qb (i + k) jb qa x R En Jb E Ha) as K.
  assert (Z.of_nat (i + k) * lz qa + x <= Z.of_nat (s qa)) by (apply K; auto; lia).
  unfold lz in *. nia.
Qed.

(** For accesses that stand still, the least distance decides: larger distances follow. *)
Theorem loop_must_later : forall qa ja qb jb k, loop_must qa ja qb jb k -> loop_must qa ja qb jb (S k).
Proof.
  intros qa ja qb jb k M T i s R En E. pose proof (M T (S i) s R En) as H.
  assert (S i * L qa + ja < s qa)%nat by (apply H; rewrite E; f_equal; f_equal; lia). nia.
Qed.
End Periodic.
