(** What a schedule is, how it runs, and why one greedy run decides deadlock.

    A schedule is a number of in-order queues.  Each task waits until some counters have reached thresholds, runs, and
    then adds to counters.  Counters only grow, so a wait that holds keeps holding: everything below follows from that. *)

From Coq Require Import Arith Lia List Bool.
From AMK Require Import Sums.
Import ListNotations.

Record schedule := Schedule {
  queues : nat;
  len : nat -> nat;                          (** tasks of a queue *)
  waits : nat -> nat -> list (nat * nat);    (** queue, position: (counter, threshold) *)
  signal : nat -> nat -> nat -> nat          (** queue, position, counter: the amount added at the task's end *)
}.

(** How many tasks each queue has completed. *)
Definition state := nat -> nat.

Definition start : state := fun _ => 0.
Definition advance (s : state) (q : nat) : state := fun r => if Nat.eqb r q then S (s r) else s r.
Definition below (s u : state) := forall q, s q <= u q.

Lemma advance_same : forall s q, advance s q q = S (s q).
Proof. intros. unfold advance. now rewrite Nat.eqb_refl. Qed.

Lemma advance_other : forall s q r, r <> q -> advance s q r = s r.
Proof. intros s q r N. unfold advance. apply Nat.eqb_neq in N. now rewrite N. Qed.

Lemma below_advance : forall s q, below s (advance s q).
Proof. intros s q r. unfold advance. destruct (Nat.eqb r q); lia. Qed.

Section Runs.
Variable P : schedule.

Definition count (s : state) (c : nat) : nat :=
  sum (queues P) (fun q => sum (s q) (fun i => signal P q i c)).

(** Queue [q] has a next task and every wait of it holds. *)
Definition enabled (s : state) (q : nat) : Prop :=
  q < queues P /\ s q < len P q /\ forall c t, In (c, t) (waits P q (s q)) -> t <= count s c.

(** The reachable states; [reach_eq] says that a state is what it maps queues to. *)
Inductive reach : state -> Prop :=
| reach_start : reach start
| reach_eq : forall s u, reach s -> (forall q, s q = u q) -> reach u
| reach_step : forall s q, reach s -> enabled s q -> reach (advance s q).

Definition terminal (s : state) := forall q, ~ enabled s q.
Definition complete (s : state) := forall q, q < queues P -> s q = len P q.
Definition deadlock_free := forall s, reach s -> terminal s -> complete s.

Lemma count_mono : forall s u c, below s u -> count s c <= count u c.
Proof. intros s u c H. apply sum_le. intros q _. apply sum_longer, H. Qed.

(** Progress of the others never disables a task. *)
Lemma enabled_mono : forall s u q, below s u -> s q = u q -> enabled s q -> enabled u q.
Proof.
  intros s u q B E (Hq & Hl & W). split; [|split]; auto; [lia|].
  intros c t I. rewrite <- E in I. specialize (W c t I). pose proof (count_mono s u c B). lia.
Qed.

Lemma reach_len : forall s, reach s -> forall q, q < queues P -> s q <= len P q.
Proof.
  induction 1 as [|s u R IH E|s q R IH (A & B & C)]; intros r Hr.
  - unfold start. lia.
  - rewrite <- E. auto.
  - destruct (Nat.eq_dec r q) as [->|N].
    + rewrite advance_same. lia.
    + rewrite advance_other; auto.
Qed.

Lemma reach_outside : forall s, reach s -> forall q, queues P <= q -> s q = 0.
Proof.
  induction 1 as [|s u R IH E|s q R IH (A & _)]; intros r Hr; auto.
  - rewrite <- E. auto.
  - rewrite advance_other; auto. lia.
Qed.

(** *** Dominance: every reachable state is below every terminal state. *)
Theorem dominance : forall s, reach s -> forall g, terminal g -> below s g.
Proof.
  induction 1 as [|s u R IH E|s q R IH En]; intros g T x.
  - unfold start. lia.
  - rewrite <- E. now apply IH.
  - specialize (IH g T). destruct (Nat.eq_dec x q) as [->|N].
    + rewrite advance_same. pose proof (IH q).
      destruct (Nat.eq_dec (s q) (g q)) as [Eq|]; [|lia].
      exfalso. apply (T q). now apply enabled_mono with (s := s).
    + rewrite advance_other by auto. apply IH.
Qed.

(** One execution that completes: none can get stuck. *)
Theorem one_complete_run_suffices : forall g, reach g -> complete g -> deadlock_free.
Proof.
  intros g Rg Cg s Rs Ts q Hq.
  pose proof (dominance g Rg s Ts q). pose proof (reach_len s Rs q Hq). rewrite (Cg q Hq) in *. lia.
Qed.

(** One execution that gets stuck: none completes. *)
Theorem one_stuck_run_suffices : forall g, reach g -> terminal g -> ~ complete g ->
  forall s, reach s -> ~ complete s.
Proof.
  intros g Rg Tg N s Rs C. apply N. intros q Hq.
  pose proof (dominance s Rs g Tg q). pose proof (reach_len g Rg q Hq). rewrite (C q Hq) in *. lia.
Qed.

(** *** The greedy run exists, and it is computable. *)
Lemma waits_dec : forall s l,
  {forall c t, In (c, t) l -> t <= count s c} + {exists c t, In (c, t) l /\ count s c < t}.
Proof.
  intros s l. induction l as [|(c, t) l [IH|IH]].
  - left. intros c t [].
  - destruct (le_lt_dec t (count s c)).
    + left. intros c' t' [E|I]; [injection E as <- <-; auto|auto].
    + right. exists c, t. split; [left|]; auto.
  - right. destruct IH as (c' & t' & I & L). exists c', t'. split; [right|]; auto.
Qed.

Lemma enabled_dec : forall s q, {enabled s q} + {~ enabled s q}.
Proof.
  intros s q. destruct (lt_dec q (queues P)); [|right; intros (A & _); lia].
  destruct (lt_dec (s q) (len P q)); [|right; intros (_ & A & _); lia].
  destruct (waits_dec s (waits P q (s q))) as [W|W].
  - left. split; [|split]; auto.
  - right. intros (_ & _ & A). destruct W as (c & t & I & L). specialize (A c t I). lia.
Qed.

Lemma some_enabled_dec : forall s n, {q | enabled s q} + {forall q, q < n -> ~ enabled s q}.
Proof.
  intros s n. induction n as [|n [IH|IH]]; auto.
  - right. intros; lia.
  - destruct (enabled_dec s n) as [E|E]; [left; exists n; auto|].
    right. intros q Hq. destruct (Nat.eq_dec q n) as [->|]; auto. apply IH. lia.
Qed.

Definition remaining (s : state) := sum (queues P) (fun q => len P q - s q).

Lemma remaining_advance : forall s q, enabled s q -> remaining (advance s q) < remaining s.
Proof.
  intros s q (Hq & Hl & _). apply sum_lt with (k := q); auto.
  - intros i _. pose proof (below_advance s q i). lia.
  - rewrite advance_same. lia.
Qed.

Lemma greedy_from : forall n s, remaining s <= n -> reach s -> {g | reach g /\ terminal g /\ below s g}.
Proof.
  induction n as [|n IH]; intros s L R; destruct (some_enabled_dec s (queues P)) as [(q & E)|N].
  - exfalso. pose proof (remaining_advance s q E). lia.
  - exists s. repeat split; auto; [|intro; auto]. intros q E. apply (N q); auto. apply E.
  - destruct (IH (advance s q)) as (g & Rg & Tg & Bg).
    + pose proof (remaining_advance s q E). lia.
    + now apply reach_step.
    + exists g. repeat split; auto. intro x. pose proof (Bg x). pose proof (below_advance s q x). lia.
  - exists s. repeat split; auto; [|intro; auto]. intros q E. apply (N q); auto. apply E.
Qed.

Theorem greedy_run : {g | reach g /\ terminal g}.
Proof.
  destruct (greedy_from (remaining start) start) as (g & R & T & _); auto; [constructor|now exists g].
Qed.

Lemma complete_dec : forall s, {complete s} + {~ complete s}.
Proof.
  intro s. unfold complete. induction (queues P) as [|n [IH|IH]].
  - left. intros; lia.
  - destruct (Nat.eq_dec (s n) (len P n)) as [E|E].
    + left. intros q Hq. destruct (Nat.eq_dec q n) as [->|]; auto. apply IH. lia.
    + right. intro A. apply E, A. lia.
  - right. intro A. apply IH. intros q Hq. apply A. lia.
Qed.

(** Any terminal state decides deadlock freedom, so one greedy run does. *)
Theorem greedy_decides : forall g, reach g -> terminal g -> (deadlock_free <-> complete g).
Proof.
  intros g R T. split; intro H; [now apply H|now apply one_complete_run_suffices with (g := g)].
Qed.

Theorem deadlock_free_dec : {deadlock_free} + {~ deadlock_free}.
Proof.
  destruct greedy_run as (g & R & T).
  destruct (complete_dec g) as [C|C]; [left|right]; rewrite (greedy_decides g R T); auto.
Qed.
End Runs.
