(** Machines of several agents whose steps commute: all runs that end, end alike and after equally many steps. *)

From Coq Require Import Arith Lia.

Section Confluence.
Variable machine : Type.
Variable same : machine -> machine -> Prop.               (** equality of machines, function by function *)
Variable step : nat -> machine -> option machine.         (** the next step of an agent, if it has one *)
Variable good : machine -> Prop.                          (** an invariant *)

Hypothesis same_sym : forall x y, same x y -> same y x.
Hypothesis same_trans : forall x y z, same x y -> same y z -> same x z.
Hypothesis step_same : forall q x y x', same x y -> step q x = Some x' -> exists y', step q y = Some y' /\ same x' y'.
Hypothesis good_step : forall q x y, good x -> step q x = Some y -> good y.
Hypothesis diamond : forall x q r y z, good x -> q <> r -> step q x = Some y -> step r x = Some z ->
  exists w w', step r y = Some w /\ step q z = Some w' /\ same w w'.

(** [run n x y]: n steps lead from x to y. *)
Inductive run : nat -> machine -> machine -> Prop :=
| run_none : forall x y, same x y -> run 0 x y
| run_more : forall n q x y z, step q x = Some y -> run n y z -> run (S n) x z.

(** Nobody has a step. *)
Definition final (x : machine) := forall q, step q x = None.

Lemma run_same : forall n x z, run n x z -> forall y, same x y -> run n y z.
Proof.
  induction 1 as [x z S|n q x x' z St R IH]; intros y E.
  - apply run_none. apply same_trans with x; auto.
  - destruct (step_same q x y x' E St) as (y' & St' & E'). apply run_more with (q := q) (y := y'); auto.
Qed.

Lemma strip : forall n x z, run n x z -> good x -> final z ->
  forall q y, step q x = Some y -> exists m, n = S m /\ run m y z.
Proof.
  induction n as [|n IH]; intros x z R G F q y St; inversion R as [x1 y1 E|n1 p x1 x' z1 Sp R']; subst.
  - destruct (step_same q x z y E St) as (z' & Sz & _). rewrite F in Sz. discriminate.
  - destruct (Nat.eq_dec p q) as [->|N].
    + rewrite St in Sp. injection Sp as <-. eauto.
    + destruct (diamond x p q x' y G N Sp St) as (w & w' & W1 & W2 & E).
      destruct (IH x' z R') with (q := q) (y := w) as (m & -> & Rw); auto; [now apply good_step with (q := p) (x := x)|].
      exists (S m). split; auto. apply run_more with (q := p) (y := w'); auto. now apply run_same with (x := w).
Qed.

Theorem every_run_reaches_the_end : forall x, good x -> forall n z, run n x z -> final z ->
  forall m y, run m x y -> m <= n /\ run (n - m) y z.
Proof.
  intros x G n z Rz F m y Ry. revert n Rz G.
  induction Ry as [x y E|m q x x' y St R IH]; intros n Rz G.
  - split; [lia|]. rewrite Nat.sub_0_r. now apply run_same with (x := x).
  - destruct (strip n x z Rz G F q x' St) as (k & -> & Rk).
    destruct (IH k Rk) as (L & RR); [now apply good_step with (q := q) (x := x)|]. split; [lia|auto].
Qed.

Theorem ends_alike : forall x, good x -> forall n m y z, run n x y -> final y -> run m x z -> final z -> n = m /\ same y z.
Proof.
  intros x G n m y z Ry Fy Rz Fz.
  destruct (every_run_reaches_the_end x G n y Ry Fy m z Rz) as (L & R).
  destruct (every_run_reaches_the_end x G m z Rz Fz n y Ry) as (L' & _).
  split; [lia|]. replace (n - m) with 0 in R by lia. inversion R as [x1 y1 S|]; subst. now apply same_sym.
Qed.
End Confluence.
