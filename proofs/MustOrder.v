(** Must-order: what is certainly complete when a task may start; and the local check of a clock table that proves it. *)

From Coq Require Import Arith Lia List Bool.
From AMK Require Import Sums Semantics.
Import ListNotations.

Definition join (s u : state) : state := fun q => Nat.max (s q) (u q).

Section Order.
Variable P : schedule.
Notation reach := (reach P).
Notation enabled := (enabled P).
Notation count := (count P).

(** *** Reachable states are closed under join. *)
Theorem join_closed : forall s, reach s -> forall u, reach u -> reach (join s u).
Proof.
  induction 1 as [|s s' R IH E|s q R IH En]; intros u Ru.
  - now apply reach_eq with (s := u).
  - apply reach_eq with (s := join s u); [now apply IH|]. intro. unfold join. now rewrite E.
  - specialize (IH u Ru). destruct (le_lt_dec (u q) (s q)) as [L|L].
    + assert (En' : enabled (join s u) q).
      { apply enabled_mono with (s := s); auto; [intro x|]; unfold join; lia. }
      apply reach_eq with (s := advance (join s u) q); [now apply reach_step|].
      intro x. destruct (Nat.eq_dec x q) as [->|N].
      * rewrite advance_same. unfold join. rewrite advance_same. lia.
      * rewrite advance_other by auto. unfold join. now rewrite advance_other by auto.
    + apply reach_eq with (s := join s u); auto. intro x. unfold join.
      destruct (Nat.eq_dec x q) as [->|N]; [rewrite advance_same|rewrite advance_other by auto]; lia.
Qed.

(** A task that is complete was enabled earlier, in a smaller state. *)
Lemma passed : forall J, reach J -> forall q i, i < J q ->
  exists s, reach s /\ enabled s q /\ s q = i /\ below s J.
Proof.
  induction 1 as [|s u R IH E|s q R IH En]; intros x i Hi.
  - unfold start in Hi. lia.
  - rewrite <- E in Hi. destruct (IH x i Hi) as (v & A & B & C & D).
    exists v. split; [|split; [|split]]; auto. intro y. rewrite <- E. apply D.
  - pose proof (below_advance s q) as Adv.
    assert (Old : i < s x -> exists v, reach v /\ enabled v x /\ v x = i /\ below v (advance s q)).
    { intro L. destruct (IH x i L) as (v & A & B & C & D). exists v. split; [|split; [|split]]; auto.
      intro y. pose proof (D y). pose proof (Adv y). lia. }
    destruct (Nat.eq_dec x q) as [->|N].
    + rewrite advance_same in Hi. destruct (Nat.eq_dec i (s q)) as [->|]; [|apply Old; lia].
      exists s. auto.
    + rewrite advance_other in Hi by auto. auto.
Qed.

(** *** Must-order, and tasks that may run at the same time. *)
(** In every reachable state in which task [ib] of queue [qb] may start, task [ia] of queue [qa] is complete. *)
Definition must (qa ia qb ib : nat) := forall s, reach s -> enabled s qb -> s qb = ib -> ia < s qa.

Definition coenabled (qa ia qb ib : nat) :=
  exists s, reach s /\ s qa = ia /\ s qb = ib /\ enabled s qa /\ enabled s qb.

Definition may_start (q i : nat) := exists s, reach s /\ enabled s q /\ s q = i.

Theorem must_trans : forall qa ia qb ib qc ic,
  must qa ia qb ib -> must qb ib qc ic -> must qa ia qc ic.
Proof.
  intros qa ia qb ib qc ic AB BC s R E Hs. pose proof (BC s R E Hs) as L.
  destruct (passed s R qb ib L) as (u & Ru & Eu & Hu & Bu).
  pose proof (AB u Ru Eu Hu). pose proof (Bu qa). lia.
Qed.

Lemma must_same_queue : forall q i j, i < j -> must q i q j.
Proof. intros q i j L s _ _ E. lia. Qed.

Lemma coenabled_not_must : forall qa ia qb ib,
  coenabled qa ia qb ib -> ~ must qa ia qb ib /\ ~ must qb ib qa ia.
Proof.
  intros qa ia qb ib (s & R & A & B & EA & EB).
  split; intro M; [pose proof (M s R EB B)|pose proof (M s R EA A)]; lia.
Qed.

(** If each task may start before the other is complete, one reachable state enables both. *)
Theorem separate_to_coenabled : forall qa ia qb ib s u,
  reach s -> enabled s qb -> s qb = ib -> s qa <= ia ->
  reach u -> enabled u qa -> u qa = ia -> u qb <= ib ->
  coenabled qa ia qb ib.
Proof.
  intros qa ia qb ib s u Rs Es Bs As Ru Eu Au Bu. exists (join s u).
  split; [now apply join_closed|]. unfold join at 1 2. split; [lia|]. split; [lia|]. split.
  - apply enabled_mono with (s := u); auto; [intro x|]; unfold join; lia.
  - apply enabled_mono with (s := s); auto; [intro x|]; unfold join; lia.
Qed.

(** *** Clock tables.
    [V q i r] claims: before task [i] of queue [q] starts, queue [r] has completed [V q i r] tasks.  The table is untrusted;
    [local_ok] checks each entry against the entry of the task before and against the clocks of the signalling tasks. *)
Section Clocks.
Variable V : nat -> nat -> nat -> nat.

(** What holds when the task has ended. *)
Definition plus (q i r : nat) := if Nat.eqb r q then Nat.max (V q i r) (S i) else V q i r.

(** The most that counter [c] can hold while queue [r] has completed fewer than [v] tasks. *)
Definition low (c r v : nat) :=
  sum (queues P) (fun x => sum (len P x) (fun j => if plus x j r <? v then signal P x j c else 0)).

Definition entry_ok (q i r : nat) :=
  V q i r = 0
  \/ (0 < i /\ V q i r <= plus q (i - 1) r)
  \/ exists c t, In (c, t) (waits P q i) /\ low c r (V q i r) < t.

Definition local_ok := forall q i r, q < queues P -> i < len P q -> entry_ok q i r.

(** Every completed task's clock is honoured. *)
Definition honoured (s : state) := forall q i r, q < queues P -> i < s q -> plus q i r <= s r.

Lemma clock_at_start : local_ok -> forall s, reach s -> honoured s ->
  forall q r, enabled s q -> V q (s q) r <= s r.
Proof.
  intros L s R H q r (Hq & Hl & W). destruct (L q (s q) r Hq Hl) as [Z|[(I & Z)|(c & t & I & Low)]].
  - lia.
  - pose proof (H q (s q - 1) r Hq). lia.
  - destruct (le_lt_dec (V q (s q) r) (s r)) as [|Gt]; auto. exfalso. specialize (W c t I).
    enough (count s c <= low c r (V q (s q) r)) by lia.
    apply sum_le. intros x Hx.
    apply Nat.le_trans with (sum (s x) (fun j => if plus x j r <? V q (s q) r then signal P x j c else 0)).
    + apply sum_le. intros j Hj. pose proof (H x j r Hx Hj) as HP.
      assert (Lt : plus x j r < V q (s q) r) by lia. apply Nat.ltb_lt in Lt. now rewrite Lt.
    + apply sum_longer. now apply (reach_len P).
Qed.

Lemma always_honoured : local_ok -> forall s, reach s -> honoured s.
Proof.
  intros L s R. induction R as [|s u R IH E|s q R IH En]; intros x i r Hx Hi.
  - unfold start in Hi. lia.
  - rewrite <- E in *. now apply IH.
  - pose proof (below_advance s q r) as Adv.
    destruct (Nat.eq_dec x q) as [->|N].
    + rewrite advance_same in Hi. destruct (Nat.eq_dec i (s q)) as [->|].
      * pose proof (clock_at_start L s R IH q r En) as K. unfold plus.
        destruct (Nat.eqb r q) eqn:Eq; [|lia]. apply Nat.eqb_eq in Eq. subst r. rewrite advance_same. lia.
      * pose proof (IH q i r Hx). lia.
    + rewrite advance_other in Hi by auto. pose proof (IH x i r Hx Hi). lia.
Qed.

(** *** A table that passes the local check is true. *)
Theorem clocks_sound : local_ok -> forall q i r s,
  reach s -> enabled s q -> s q = i -> V q i r <= s r.
Proof.
  intros L q i r s R E <-. apply clock_at_start; auto. now apply always_honoured.
Qed.

Theorem certificate_sound : local_ok -> forall qa ia qb ib, ia < V qb ib qa -> must qa ia qb ib.
Proof. intros L qa ia qb ib C s R E Hs. pose proof (clocks_sound L qb ib qa s R E Hs). lia. Qed.
End Clocks.
End Order.

(** *** Fewer waits, more reachable states.
    Rule TAG takes its must-order from a schedule without the waits of tagged reads: what is ordered there is ordered here. *)
Section Weaker.
Variables P P' : schedule.
Hypothesis same_queues : queues P' = queues P.
Hypothesis same_len : forall q, len P' q = len P q.
Hypothesis same_signal : forall q i c, signal P' q i c = signal P q i c.
Hypothesis fewer_waits : forall q i c t, In (c, t) (waits P' q i) -> In (c, t) (waits P q i).

Lemma weaker_enabled : forall s q, enabled P s q -> enabled P' s q.
Proof.
  intros s q (A & B & C). split; [|split].
  - now rewrite same_queues.
  - now rewrite same_len.
  - intros c t I. specialize (C c t (fewer_waits _ _ _ _ I)).
    enough (count P' s c = count P s c) by lia. unfold count. rewrite same_queues.
    apply sum_ext. intros. apply sum_ext. auto.
Qed.

Theorem weaker_reach : forall s, reach P s -> reach P' s.
Proof.
  induction 1 as [|s u R IH E|s q R IH En]; [constructor|now apply reach_eq with (s := s)|].
  apply reach_step; auto. now apply weaker_enabled.
Qed.

Theorem weaker_must : forall qa ia qb ib, must P' qa ia qb ib -> must P qa ia qb ib.
Proof. intros qa ia qb ib M s R E. apply M; [now apply weaker_reach|now apply weaker_enabled]. Qed.
End Weaker.
