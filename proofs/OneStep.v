(** One step decides deadlock for every number of steps, waits on the step before included. *)

From Coq Require Import Arith Lia List Bool.
From AMK Require Import Sums Semantics MustOrder Loop.

Section OneStep.
Variable B : loop.
Hypothesis W : counted B.
Notation L := (per_step B).

Lemma complete_is_later : forall T s, reach (unroll B T) s -> complete (unroll B T) s ->
  forall q, s q = later B T start q.
Proof.
  intros T s R C q. unfold later, start. destruct (q <? lqueues B) eqn:E.
  - apply Nat.ltb_lt in E. rewrite (C q E). simpl. lia.
  - apply Nat.ltb_ge in E. now apply (reach_outside (unroll B T)).
Qed.

(** If one step completes, so do T steps, one after the other. *)
Theorem one_step_suffices : deadlock_free (unroll B 1) -> forall T, deadlock_free (unroll B T).
Proof.
  intros D T. destruct (greedy_run (unroll B 1)) as (g & Rg & Tg).
  assert (One : reach (unroll B 1) (later B 1 start)).
  { apply reach_eq with (s := g); auto. apply complete_is_later; auto. }
  apply one_complete_run_suffices with (g := later B T start).
  - replace T with (T + 0) at 1 by lia. apply reach_later; auto. constructor.
  - intros q Hq. unfold later, start. apply Nat.ltb_lt in Hq. simpl in *. rewrite Hq. lia.
Qed.

(** What runs in the last of T + 1 steps could have run alone. *)
Lemma last_step_alone : forall T s, reach (unroll B (S T)) s -> reach (unroll B 1) (since B T s).
Proof.
  intros T s R. induction R as [|s u R IH E|s q R IH En].
  - apply reach_eq with (s := start); [constructor|]. intro q. unfold since, start. lia.
  - apply reach_eq with (s := since B T s); auto. intro q. unfold since. now rewrite E.
  - destruct (le_lt_dec (T * L q) (s q)) as [Last|Early].
    + apply reach_eq with (s := advance (since B T s) q).
      * apply reach_step; auto. destruct En as (Hq & Hl & C). simpl in Hq, Hl.
        assert (Lq : 0 < L q) by nia. assert (Eq : s q = T * L q + since B T s q) by (unfold since; lia).
        assert (Hj : since B T s q < L q) by (unfold since; lia).
        destruct (div_mod_later B q T (since B T s q) Lq) as (D & M). rewrite <- Eq in D, M.
        split; [|split]; auto; [simpl; lia|]. intros c th I. apply in_unrolled_waits in I. destruct I as (t & e & I & ->).
        rewrite (Nat.div_small _ _ Hj), (Nat.mod_small _ _ Hj) in *.
        pose proof (W q _ c t e Hq Hj I) as Wt. unfold threshold. destruct e; [simpl; lia|]. simpl.
        assert (In (c, threshold B (s q / L q) c t false) (waits (unroll B (S T)) q (s q))) as I'.
        { apply in_unrolled_waits. exists t, false. rewrite M. auto. }
        pose proof (C _ _ I') as Ct. unfold threshold in Ct. rewrite D, Nat.add_0_r in Ct.
        pose proof (count_since B (S T) 1 T s c). lia.
      * intro r. unfold since, advance. destruct (Nat.eqb r q) eqn:Er; auto. apply Nat.eqb_eq in Er. subst. lia.
    + apply reach_eq with (s := since B T s); auto.
      intro r. unfold since, advance. destruct (Nat.eqb r q) eqn:Er; auto. apply Nat.eqb_eq in Er. subst. lia.
Qed.

(** *** Both directions: one step is exact for every number of steps. *)
Theorem one_step_exact : forall T, 0 < T -> (deadlock_free (unroll B T) <-> deadlock_free (unroll B 1)).
Proof.
  intros [|T] H; [lia|]. split; [|intro D; now apply one_step_suffices]. intro D.
  destruct (greedy_run (unroll B (S T))) as (g & Rg & Tg).
  apply one_complete_run_suffices with (g := since B T g); [now apply last_step_alone|].
  intros q Hq. simpl in Hq. unfold since. rewrite (D g Rg Tg q Hq). simpl. lia.
Qed.
End OneStep.
