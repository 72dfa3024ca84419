(** Loops: one step of a schedule, repeated.  A wait may look at this step or at the step before; counters run on over the
    steps, so a fast queue may be several steps ahead of a slow one.  A loop of T steps is itself a schedule ([unroll]), so
    everything proved about schedules holds for it. *)

From Coq Require Import Arith Lia List Bool.
From AMK Require Import Sums Semantics MustOrder.
Import ListNotations.

Record loop := Loop {
  lqueues : nat;
  per_step : nat -> nat;                              (** tasks a step of a queue *)
  lwaits : nat -> nat -> list (nat * nat * bool);     (** queue, position: (counter, t, does it mean the step before?) *)
  lsignal : nat -> nat -> nat -> nat                  (** queue, position, counter: amount *)
}.

Section Unroll.
Variable B : loop.
Notation L := (per_step B).

(** What one step adds to a counter. *)
Definition total (c : nat) : nat := sum (lqueues B) (fun q => sum (L q) (fun j => lsignal B q j c)).

(** Step [i] waits for [(i + e) * total + t]; before step 0 the step before holds trivially (truncated subtraction: t <= total). *)
Definition threshold (i c t : nat) (before : bool) : nat :=
  if before then i * total c + t - total c else i * total c + t.

Definition unroll (T : nat) : schedule :=
  Schedule (lqueues B) (fun q => T * L q)
    (fun q m => map (fun w => match w with (c, t, before) => (c, threshold (m / L q) c t before) end) (lwaits B q (m mod L q)))
    (fun q m c => lsignal B q (m mod L q) c).

(** Rule COUNT, as far as it is needed: no wait asks for more than one step adds. *)
Definition counted := forall q j c t e, q < lqueues B -> j < L q -> In (c, t, e) (lwaits B q j) -> t <= total c.

Lemma in_unrolled_waits : forall T q m c th, In (c, th) (waits (unroll T) q m) <->
  exists t e, In (c, t, e) (lwaits B q (m mod L q)) /\ th = threshold (m / L q) c t e.
Proof.
  intros T q m c th. simpl. rewrite in_map_iff. split.
  - intros (((c', t), e) & Eq & I). injection Eq as <- <-. exists t, e. auto.
  - intros (t & e & I & ->). exists (c, t, e). auto.
Qed.

(** The number of steps only bounds the queues. *)
Lemma unroll_enabled_longer : forall T U s q, T <= U -> enabled (unroll T) s q -> enabled (unroll U) s q.
Proof. intros T U s q H (A & Bq & C). split; [|split]; auto. simpl in *. nia. Qed.

Lemma unroll_reach_longer : forall T U s, T <= U -> reach (unroll T) s -> reach (unroll U) s.
Proof.
  intros T U s H R. induction R as [|s u R IH E|s q R IH En]; [constructor|now apply reach_eq with (s := s)|].
  apply reach_step; auto. now apply unroll_enabled_longer with (T := T).
Qed.

(** *** Counting over whole steps *)
Lemma sum_steps : forall n k f, sum (k * n) (fun m => f (m mod n)) = k * sum n f.
Proof.
  intros n k f. induction k as [|k IH]; auto.
  replace (S k * n) with (k * n + n) by lia. rewrite sum_split, IH.
  replace (sum n (fun i => f ((k * n + i) mod n))) with (sum n f); [lia|].
  apply sum_ext. intros i Hi. replace (k * n + i) with (i + k * n) by lia.
  rewrite Nat.mod_add by lia. now rewrite Nat.mod_small.
Qed.

Lemma sum_steps_more : forall n k x f,
  sum (k * n + x) (fun m => f (m mod n)) = k * sum n f + sum x (fun m => f (m mod n)).
Proof.
  intros n k x f. rewrite sum_split, sum_steps. f_equal. apply sum_ext. intros i Hi.
  destruct (Nat.eq_dec n 0) as [->|N]; [now rewrite Nat.mul_0_r|].
  replace (k * n + i) with (i + k * n) by lia. now rewrite Nat.mod_add.
Qed.

(** The state [k] whole steps later, and the state seen from step [k] on. *)
Definition later (k : nat) (s : state) : state := fun q => if q <? lqueues B then k * L q + s q else s q.
Definition since (k : nat) (s : state) : state := fun q => s q - k * L q.

Lemma count_later : forall T U k s c, count (unroll T) (later k s) c = k * total c + count (unroll U) s c.
Proof.
  intros T U k s c. unfold count, total, later. simpl. rewrite <- sum_scale, <- sum_add. apply sum_ext.
  intros q Hq. apply Nat.ltb_lt in Hq. rewrite Hq. apply (sum_steps_more (L q) k (s q) (fun j => lsignal B q j c)).
Qed.

Lemma count_since : forall T U k s c, count (unroll T) s c <= k * total c + count (unroll U) (since k s) c.
Proof.
  intros T U k s c. unfold count, total, since. simpl. rewrite <- sum_scale, <- sum_add. apply sum_le. intros q Hq.
  set (f := fun j => lsignal B q j c). destruct (le_lt_dec (k * L q) (s q)) as [H|H].
  - replace (s q) with (k * L q + (s q - k * L q)) at 1 by lia. rewrite (sum_steps_more (L q) k _ f). auto.
  - replace (s q - k * L q) with 0 by lia. rewrite <- (sum_steps (L q) k f). simpl.
    rewrite Nat.add_0_r. apply sum_longer. lia.
Qed.

Lemma div_mod_later : forall q k m, 0 < L q -> (k * L q + m) / L q = k + m / L q /\ (k * L q + m) mod L q = m mod L q.
Proof.
  intros q k m H. replace (k * L q + m) with (m + k * L q) by lia. rewrite Nat.div_add, Nat.mod_add by lia. lia.
Qed.

Lemma threshold_later : forall k i c t e, t <= total c -> threshold (k + i) c t e <= k * total c + threshold i c t e.
Proof. intros k i c t [|] H; unfold threshold; nia. Qed.

Lemma position_lt : forall q m T, m < T * L q -> 0 < L q /\ m mod L q < L q.
Proof. intros q m T H. assert (0 < L q) by nia. split; auto. apply Nat.mod_upper_bound. lia. Qed.

(** A task that is enabled is enabled [k] whole steps later. *)
Lemma enabled_later : counted -> forall T k s q,
  enabled (unroll T) s q -> enabled (unroll (k + T)) (later k s) q.
Proof.
  intros W T k s q (Hq & Hl & C). simpl in Hq, Hl. destruct (position_lt q (s q) T Hl) as (Lq & Hm).
  assert (Eq : later k s q = k * L q + s q) by (unfold later; apply Nat.ltb_lt in Hq; now rewrite Hq).
  destruct (div_mod_later q k (s q) Lq) as (D & M). split; [|split]; auto.
  - simpl. rewrite Eq. nia.
  - intros c th I. rewrite Eq in I. apply in_unrolled_waits in I. destruct I as (t & e & I & ->). rewrite M in I.
    rewrite D, (count_later (k + T) T).
    assert (In (c, threshold (s q / L q) c t e) (waits (unroll T) q (s q))) by (apply in_unrolled_waits; eauto).
    pose proof (C _ _ H). pose proof (threshold_later k (s q / L q) c t e (W q _ c t e Hq Hm I)). lia.
Qed.

(** If one step can complete, every reachable state is reachable [k] whole steps later. *)
Lemma reach_later : counted -> reach (unroll 1) (later 1 start) -> forall k T s,
  reach (unroll T) s -> reach (unroll (k + T)) (later k s).
Proof.
  intros W One. assert (Up : forall T s, reach (unroll T) s -> reach (unroll (1 + T)) (later 1 s)).
  { intros T s R. induction R as [|s u R IH E|s q R IH En].
    - apply unroll_reach_longer with (T := 1); auto. lia.
    - apply reach_eq with (s := later 1 s); auto. intro q. unfold later. now rewrite E.
    - apply reach_eq with (s := advance (later 1 s) q).
      + apply reach_step; auto. now apply enabled_later.
      + intro r. unfold later, advance. destruct (Nat.eqb r q); auto. destruct (r <? lqueues B); lia. }
  induction k as [|k IH]; intros T s R.
  - apply reach_eq with (s := s); auto. intro q. unfold later. now destruct (q <? lqueues B).
  - specialize (IH T s R). apply Up in IH. apply reach_eq with (s := later 1 (later k s)); auto.
    intro q. unfold later. destruct (q <? lqueues B); lia.
Qed.
End Unroll.
