(** A race-free schedule computes one thing.

    Bodies are arbitrary sequential programs over a shared memory: they read an address, write an address, or are done, and what
    they do next depends on what they read.  The steps of all queues interleave freely, between a task's start and its end.
    If no two tasks with conflicting footprints can run at the same time, then all runs that come to an end do so after the same
    number of steps and with the same memory, each task having read the same values, and every other run can be continued to that
      end. *)

From Coq Require Import Arith Lia List Bool.
From AMK Require Import Sums Semantics MustOrder Exact Events Confluence.

Section Determinism.
Variable P : schedule.
Variables addr val local : Type.
Hypothesis addr_dec : forall a b : addr, {a = b} + {a <> b}.

Inductive action :=
| Read (a : addr) (next : val -> local)
| Write (a : addr) (v : val) (next : local)
| Done.

Variable act : local -> action.                  (** what a body does in a local state *)
Variable entry : nat -> nat -> local.            (** where the body of a task starts *)
Variables reads writes : nat -> nat -> addr -> Prop.   (** declared footprints, by queue and position *)

(** The local states a body can visit, whatever it reads. *)
Inductive visits (q i : nat) : local -> Prop :=
| visits_entry : visits q i (entry q i)
| visits_read : forall l a k v, visits q i l -> act l = Read a k -> visits q i (k v)
| visits_write : forall l a v l', visits q i l -> act l = Write a v l' -> visits q i l'.

(** Bodies stay inside their declared footprints. *)
Hypothesis conforms : forall q i l, visits q i l ->
  match act l with Read a _ => reads q i a | Write a _ _ => writes q i a | Done => True end.

Definition conflict (qa ia qb ib : nat) := exists a,
  (writes qa ia a /\ (reads qb ib a \/ writes qb ib a)) \/ (reads qa ia a /\ writes qb ib a).

Definition race_free := forall qa ia qb ib, qa <> qb -> conflict qa ia qb ib -> ~ coenabled P qa ia qb ib.
Hypothesis free : race_free.

(** *** Machine states and steps *)
(** [seen]: what each queue has read so far, newest first. *)
Record machine := Machine { done : state; busy : nat -> option local; mem : addr -> val; seen : nat -> list (addr * val) }.

Definition put (m : addr -> val) (a : addr) (v : val) : addr -> val := fun b => if addr_dec b a then v else m b.

(** The next step of a queue is determined by the machine's state. *)
Definition step (q : nat) (x : machine) : option machine :=
  match busy x q with
  | None => if enabled_dec P (done x) q
            then Some (Machine (done x) (set (busy x) q (Some (entry q (done x q)))) (mem x) (seen x)) else None
  | Some l =>
      match act l with
      | Read a k => Some (Machine (done x) (set (busy x) q (Some (k (mem x a)))) (mem x) (set (seen x) q ((a, mem x a) :: seen x
        q)))
      | Write a v l' => Some (Machine (done x) (set (busy x) q (Some l')) (put (mem x) a v) (seen x))
      | Done => Some (Machine (advance (done x) q) (set (busy x) q None) (mem x) (seen x))
      end
  end.

Definition same (x y : machine) :=
  (forall q, done x q = done y q) /\ (forall q, busy x q = busy y q) /\ (forall a, mem x a = mem y a) /\
  (forall q, seen x q = seen y q).

Lemma same_sym : forall x y, same x y -> same y x.
Proof. intros x y (A & B & C & D). split; [|split; [|split]]; intro; symmetry; auto. Qed.

Lemma same_trans : forall x y z, same x y -> same y z -> same x z.
Proof. intros x y z (A & B & C & D) (A' & B' & C' & D').
  split; [|split; [|split]]; intro; [rewrite A|rewrite B|rewrite C|rewrite D]; auto. Qed.

Lemma step_same : forall q x y x', same x y -> step q x = Some x' -> exists y', step q y = Some y' /\ same x' y'.
Proof.
  intros q x y x' (A & B & C & D) St. unfold step in *. rewrite <- B. destruct (busy x q) as [l|].
  - destruct (act l) as [a k|a v l'|]; injection St as <-; eexists; (split; [reflexivity|]);
      (split; [|split; [|split]]); simpl; intro z; auto; unfold set, put, advance.
    + rewrite (C a). destruct (Nat.eqb z q); auto.
    + rewrite (C a), D. destruct (Nat.eqb z q); auto.
    + destruct (Nat.eqb z q); auto.
    + destruct (addr_dec z a); auto.
    + rewrite A. auto.
    + destruct (Nat.eqb z q); auto.
  - destruct (enabled_dec P (done x) q) as [E|]; [|discriminate]. injection St as <-.
    destruct (enabled_dec P (done y) q) as [E'|N].
    + eexists; split; [reflexivity|]. split; [|split; [|split]]; simpl; auto. intro z. unfold set. rewrite A.
      destruct (Nat.eqb z q); auto.
    + exfalso. apply N. apply enabled_mono with (s := done x); auto. intro z. rewrite A. auto.
Qed.

Variable mem0 : addr -> val.
Definition initial := Machine start (fun _ => None) mem0 (fun _ => nil).

(** *** The invariant: a machine state projects to a state of Events.v. *)
Definition good (x : machine) :=
  ereach P (done x) (fun q => if busy x q then true else false) /\
  forall q l, busy x q = Some l -> visits q (done x q) l.

Lemma good_same : forall x y, good x -> same x y -> good y.
Proof.
  intros x y (R & V) (A & B & _). split.
  - eapply ereach_eq; [apply R|auto|]. intro q. simpl. now rewrite B.
  - intros q l E. rewrite <- B in E. rewrite <- A. auto.
Qed.

Lemma good_step : forall q x y, good x -> step q x = Some y -> good y.
Proof.
  intros q x y (R & V) St. unfold step in St. destruct (busy x q) as [l|] eqn:Bq.
  - destruct (act l) as [a k|a v l'|] eqn:Act; injection St as <-; split; simpl.
    + eapply ereach_eq; [apply R|auto|]. intro z. simpl. unfold set. destruct (Nat.eqb z q) eqn:E; auto.
      apply Nat.eqb_eq in E. subst. now rewrite Bq.
    + intros z l0. unfold set. destruct (Nat.eqb z q) eqn:E; auto. apply Nat.eqb_eq in E. subst.
      intro Eq. injection Eq as <-. now apply visits_read with (l := l) (a := a); [apply V|].
    + eapply ereach_eq; [apply R|auto|]. intro z. simpl. unfold set. destruct (Nat.eqb z q) eqn:E; auto.
      apply Nat.eqb_eq in E. subst. now rewrite Bq.
    + intros z l0. unfold set. destruct (Nat.eqb z q) eqn:E; auto. apply Nat.eqb_eq in E. subst.
      intro Eq. injection Eq as <-. now apply visits_write with (l := l) (a := a) (v := v); [apply V|].
    + eapply ereach_eq; [apply (ereach_end P _ _ q R); now rewrite Bq|auto|].
      intro z. simpl. unfold set. destruct (Nat.eqb z q); auto.
    + intros z l0. unfold set. destruct (Nat.eqb z q) eqn:E; [discriminate|]. apply Nat.eqb_neq in E.
      rewrite advance_other by auto. auto.
  - destruct (enabled_dec P (done x) q) as [E|]; [|discriminate]. injection St as <-. split; simpl.
    + eapply ereach_eq; [apply (ereach_begin P _ _ q R); [now rewrite Bq|auto]|auto|].
      intro z. simpl. unfold set. destruct (Nat.eqb z q); auto.
    + intros z l0. unfold set. destruct (Nat.eqb z q) eqn:Eq; auto. apply Nat.eqb_eq in Eq. subst.
      intro Eq. injection Eq as <-. constructor.
Qed.

Lemma good_initial : good initial.
Proof. split; [apply ereach_start|discriminate]. Qed.

(** In a good state no two bodies are inside conflicting tasks. *)
Lemma no_conflict : forall x qa qb la lb, good x -> qa <> qb -> busy x qa = Some la -> busy x qb = Some lb ->
  ~ conflict qa (done x qa) qb (done x qb).
Proof.
  intros x qa qb la lb (R & V) N A B C. apply (free qa (done x qa) qb (done x qb) N C).
  apply (overlap_iff_coenabled P); auto. exists (done x), (fun q => if busy x q then true else false).
  split; auto. now rewrite A, B.
Qed.

(** *** Steps of different queues commute. *)
Lemma set_commute : forall A (f : nat -> A) q r a b x, q <> r -> set (set f q a) r b x = set (set f r b) q a x.
Proof.
  intros A f q r a b x N. unfold set. destruct (Nat.eqb x r) eqn:R; destruct (Nat.eqb x q) eqn:Q; auto.
  apply Nat.eqb_eq in R, Q. congruence.
Qed.

Lemma put_other : forall m a v b, b <> a -> put m a v b = m b.
Proof. intros m a v b N. unfold put. destruct (addr_dec b a); congruence. Qed.

Lemma diamond : forall x q r y z, good x -> q <> r -> step q x = Some y -> step r x = Some z ->
  exists w w', step r y = Some w /\ step q z = Some w' /\ same w w'.
Proof.
  intros x q r y z G N Sq Sr. assert (N' : r <> q) by auto.
  assert (Up : forall s q r, q <> r -> enabled P s r -> enabled P (advance s q) r).
  { intros s q0 r0 N0 E. apply enabled_mono with (s := s); auto; [apply below_advance|now rewrite advance_other by auto]. }
  assert (NC := no_conflict x q r). pose proof (proj2 G) as V.
  unfold step in Sq, Sr. unfold step.
  destruct (busy x q) as [lq|] eqn:Bq; [pose proof (conforms _ _ _ (V q lq Bq)) as Fq;
    destruct (act lq) as [aq kq|aq vq nq|] eqn:Aq|
    destruct (enabled_dec P (done x) q) as [Eq|]; [|discriminate]];
  (destruct (busy x r) as [lr|] eqn:Br; [pose proof (conforms _ _ _ (V r lr Br)) as Fr;
    destruct (act lr) as [ar kr|ar vr nr|] eqn:Ar|
    destruct (enabled_dec P (done x) r) as [Er|]; [|discriminate]]);
  injection Sq as <-; injection Sr as <-; simpl;
  rewrite ?(set_other _ _ q _ r N'), ?(set_other _ _ r _ q N), ?Bq, ?Br, ?Aq, ?Ar;
  try (assert (Ne : ~ conflict q (done x q) r (done x r)) by (apply (NC lq lr); auto));
  try (assert (Ad : aq <> ar) by (intro; subst; apply Ne; exists ar; tauto));
  repeat match goal with
  | |- context [enabled_dec P ?s ?k] => destruct (enabled_dec P s k) as [|Bad]; [|exfalso; apply Bad; auto]
  end;
  (eexists; eexists; (split; [reflexivity|split; [reflexivity|]]); split; [|split; [|split]]; simpl; intro k);
  rewrite ?put_other by auto; rewrite ?advance_other by auto; auto; try (apply set_commute; auto).
  - unfold put. destruct (addr_dec k ar), (addr_dec k aq); congruence.
  - unfold advance. destruct (Nat.eqb k r), (Nat.eqb k q); auto.
Qed.

(** *** All runs that end, end alike: the same memory, and each queue has read the same values. *)
Notation run := (Confluence.run machine same step).
Notation final := (Confluence.final machine step).

(** Any run is a prefix, in length and in effect, of a run that ends. *)
Theorem every_run_reaches_the_end : forall n z, run n initial z -> final z ->
  forall m y, run m initial y -> m <= n /\ run (n - m) y z.
Proof.
  exact (Confluence.every_run_reaches_the_end machine same step good same_sym same_trans step_same good_step diamond initial
    good_initial).
Qed.

Theorem deterministic : forall n m y z, run n initial y -> final y -> run m initial z -> final z ->
  n = m /\ (forall a, mem y a = mem z a) /\ (forall q, seen y q = seen z q).
Proof.
  intros n m y z Ry Fy Rz Fz.
  destruct (Confluence.ends_alike machine same step good same_sym same_trans step_same good_step diamond initial good_initial n m
    y z Ry Fy Rz Fz)
    as (E & _ & _ & M & R). auto.
Qed.
End Determinism.

(** Must-orders make a schedule race-free: what a certificate gives is what determinism needs. *)
Theorem ordered_is_race_free : forall P addr (reads writes : nat -> nat -> addr -> Prop),
  (forall qa ia qb ib, qa < queues P /\ ia < len P qa -> qb < queues P /\ ib < len P qb -> qa <> qb ->
   conflict addr reads writes qa ia qb ib -> must P qa ia qb ib \/ must P qb ib qa ia) ->
  race_free P addr reads writes.
Proof.
  intros P addr reads writes H qa ia qb ib N C Co. assert (Co' := Co). destruct Co' as (s & _ & A & B & Ea & Eb).
  apply coenabled_not_must in Co. destruct Co as (Na & Nb).
  destruct (H qa ia qb ib) as [M|M]; auto; destruct Ea as (? & ? & _), Eb as (? & ? & _); subst; auto.
Qed.
