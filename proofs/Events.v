(** A task is a start, a body and an end.  The atomic model of Semantics.v has the same races: two tasks can be running at the
    same time exactly if one state enables both. *)

From Coq Require Import Arith Lia List Bool.
From AMK Require Import Sums Semantics MustOrder.

Definition set {A} (f : nat -> A) (q : nat) (a : A) : nat -> A := fun x => if Nat.eqb x q then a else f x.

Lemma set_same : forall A (f : nat -> A) q a, set f q a q = a.
Proof. intros. unfold set. now rewrite Nat.eqb_refl. Qed.

Lemma set_other : forall A (f : nat -> A) q a x, x <> q -> set f q a x = f x.
Proof. intros A f q a x N. unfold set. apply Nat.eqb_neq in N. now rewrite N. Qed.

Section Events.
Variable P : schedule.

(** [s]: tasks that have ended; [busy q]: the next task of queue [q] has started and not ended. *)
Inductive ereach : state -> (nat -> bool) -> Prop :=
| ereach_start : ereach start (fun _ => false)
| ereach_eq : forall s busy s' busy',
    ereach s busy -> (forall q, s q = s' q) -> (forall q, busy q = busy' q) -> ereach s' busy'
| ereach_begin : forall s busy q,
    ereach s busy -> busy q = false -> enabled P s q -> ereach s (set busy q true)
| ereach_end : forall s busy q,
    ereach s busy -> busy q = true -> ereach (advance s q) (set busy q false).

(** A started task stays enabled until its end. *)
Lemma ereach_inv : forall s busy, ereach s busy -> reach P s /\ forall q, busy q = true -> enabled P s q.
Proof.
  induction 1 as [|s busy s' busy' R (A & En) Es Eb|s busy q R (A & En) F E|s busy q R (A & En) F].
  - split; [constructor|discriminate].
  - split; [now apply reach_eq with (s := s)|]. intros q Hq. rewrite <- Eb in Hq.
    apply enabled_mono with (s := s); auto. intro x. rewrite Es. auto.
  - split; auto. intros x. destruct (Nat.eq_dec x q) as [->|N]; auto. rewrite set_other; auto.
  - split; [apply reach_step; auto|]. intro x. destruct (Nat.eq_dec x q) as [->|N].
    + rewrite set_same. discriminate.
    + rewrite set_other by auto. intro Hx. apply enabled_mono with (s := s); auto.
      * apply below_advance.
      * now rewrite advance_other.
Qed.

Lemma reach_ereach : forall s, reach P s -> ereach s (fun _ => false).
Proof.
  induction 1 as [|s u R IH E|s q R IH En]; [constructor|now apply ereach_eq with (s := s) (busy := fun _ => false)|].
  apply ereach_eq with (s := advance s q) (busy := set (set (fun _ => false) q true) q false); auto.
  - apply ereach_end; [now apply ereach_begin|apply set_same].
  - intro x. unfold set. now destruct (Nat.eqb x q).
Qed.

Theorem overlap_iff_coenabled : forall qa ia qb ib, qa <> qb ->
  (coenabled P qa ia qb ib <->
   exists s busy, ereach s busy /\ busy qa = true /\ busy qb = true /\ s qa = ia /\ s qb = ib).
Proof.
  intros qa ia qb ib N. split.
  - intros (s & R & A & B & EA & EB). exists s, (set (set (fun _ => false) qa true) qb true). split.
    + apply ereach_begin; auto; [apply ereach_begin; auto; now apply reach_ereach|rewrite set_other; auto].
    + split; [|split; [|split]]; auto.
      * rewrite set_other by auto. apply set_same.
      * apply set_same.
  - intros (s & busy & R & A & B & HA & HB). destruct (ereach_inv s busy R) as (Rs & En).
    exists s. split; [|split; [|split; [|split]]]; auto.
Qed.
End Events.
