(** Rule STOP: a loop that may end early, and launches that continue.

    The sampler of step [i] decides whether step [i] is the last one.  At the first task of step [i + 1] each queue waits for that
    task's waits on the step before, then reads the decision and leaves if it says stop, then goes on to its other waits.  If
    those waits and queue order put the sampler of step [i] before that point, then every run is a run of the loop cut after the
    deciding step: nobody starts a task beyond it, and nobody is left behind. *)

From Coq Require Import Arith Lia List Bool.
From AMK Require Import Sums Semantics MustOrder Exact Loop OneStep.

Section Stop.
Variable B : loop.
Notation L := (per_step B).
Variables qs js : nat.                       (** queue and position of the sampler *)
Variable decision : nat -> bool.             (** what the sampler of a step decides, once it has run *)
Variable T : nat.                            (** the most steps *)

Definition sampled (s : state) (i : nat) : Prop := i * L qs + js < s qs.
Definition sampled_b (s : state) (i : nat) : bool := i * L qs + js <? s qs.

(** The queue stands before the first task of step [i + 1] and that task's waits on the step before hold. *)
Definition arrived (s : state) (q i : nat) : Prop := s q = S i * L q /\ 0 < L q /\
  forall c t, In (c, t, true) (lwaits B q 0) -> threshold B (S i) c t true <= count (unroll B T) s c.

(** The rule. *)
Hypothesis rule : forall s q i, reach (unroll B T) s -> q < lqueues B -> arrived s q i -> sampled s i.

(** What a queue reads before step [i + 1]: the decision, or a stale "go on" if it comes too early. *)
Definition reads_stop (s : state) (i : nat) : bool := decision i && sampled_b s i.

Definition stopped (s : state) (q : nat) : Prop := exists i, s q = S i * L q /\ reads_stop s i = true.

Inductive sreach : state -> Prop :=
| sreach_start : sreach start
| sreach_eq : forall s u, sreach s -> (forall q, s q = u q) -> sreach u
| sreach_step : forall s q, sreach s -> enabled (unroll B T) s q -> ~ stopped s q -> sreach (advance s q).

(** The steps that run: up to the first that decides to stop. *)
Variable last : nat.
Hypothesis last_in : last <= T.
Hypothesis goes_on : forall i, S i < last -> decision i = false.
Hypothesis stops : last = T \/ (0 < last /\ decision (last - 1) = true).

Lemma first_task_arrived : forall s q i, enabled (unroll B T) s q -> s q = S i * L q -> arrived s q i.
Proof.
  intros s q i (Hq & Hl & W) E. simpl in Hl. destruct (position_lt B q (s q) T Hl) as (Lq & _).
  split; [|split]; auto. intros c t I. apply W. apply in_unrolled_waits. exists t, true.
  rewrite E. rewrite Nat.mod_mul, Nat.div_mul by lia. auto.
Qed.

(** *** Nobody starts a task beyond the deciding step. *)
Theorem stop_is_a_cut : forall s, sreach s -> reach (unroll B last) s.
Proof.
  induction 1 as [|s u R IH E|s q R IH En N]; [constructor|now apply reach_eq with (s := s)|].
  apply reach_step; auto. destruct En as (Hq & Hl & W). split; [|split]; auto. simpl in *.
  pose proof (reach_len _ s IH q Hq) as Le. simpl in Le.
  destruct (Nat.eq_dec (s q) (last * L q)) as [Eq|]; [|lia]. exfalso.
  destruct stops as [->|(Pos & D)]; [lia|]. apply N. exists (last - 1). replace (S (last - 1)) with last by lia.
  split; auto. unfold reads_stop. rewrite D. simpl. apply Nat.ltb_lt.
  apply (rule s q); auto; [apply unroll_reach_longer with (T := last); auto|].
  apply first_task_arrived; [split; [|split]; auto|]. now replace (S (last - 1)) with last by lia.
Qed.

(** *** Nobody is left behind: where nothing can go on, every queue has run exactly the steps up to the decision. *)
Theorem stop_is_complete : counted B -> deadlock_free (unroll B 1) -> forall s, sreach s ->
  (forall q, enabled (unroll B T) s q -> stopped s q) -> complete (unroll B last) s.
Proof.
  intros W D s R Stuck. pose proof (stop_is_a_cut s R) as Rl. apply (one_step_suffices B W D last s Rl).
  intros q En. assert (En' : enabled (unroll B T) s q) by (apply unroll_enabled_longer with (T := last); auto).
  destruct (Stuck q En') as (i & E & Rd). unfold reads_stop in Rd. apply andb_true_iff in Rd. destruct Rd as (Dec & _).
  destruct En as (_ & Hl & _). simpl in Hl. rewrite E in Hl. assert (S i < last) by nia. rewrite goes_on in Dec; congruence.
Qed.
End Stop.

(** Launches that continue: counters run on from a number of whole steps.  Every state of such a launch is a state of one long
    launch, so must-orders, and with them the absence of races, carry over. *)
Section Continue.
Variable B : loop.
Hypothesis W : counted B.
Hypothesis Live : deadlock_free (unroll B 1).

Inductive reach_from (base T : nat) : state -> Prop :=
| from_start : reach_from base T (later B base start)
| from_eq : forall s u, reach_from base T s -> (forall q, s q = u q) -> reach_from base T u
| from_step : forall s q, reach_from base T s -> enabled (unroll B (base + T)) s q -> reach_from base T (advance s q).

Theorem continued_launch : forall base T s, reach_from base T s -> reach (unroll B (base + T)) s.
Proof.
  intros base T s R. induction R as [|s u R IH E|s q R IH En]; [|now apply reach_eq with (s := s)|now apply reach_step].
  destruct (greedy_run (unroll B 1)) as (g & Rg & Tg).
  apply unroll_reach_longer with (T := base + 0); [lia|]. apply reach_later; [exact W| |constructor].
  apply reach_eq with (s := g); auto. apply complete_is_later; auto.
Qed.
End Continue.
