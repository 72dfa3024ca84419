(** Why it is enough to look at neighbours.

    RACE asks that every two conflicting accesses to a byte are must-ordered: quadratically many pairs.  The sweep walks through
    the accesses of one byte once, remembers the last write and the reads since, and compares a read with the last write, and a
    write with the reads since (or, where there are none, with the last write).  Must-order is transitive, so all pairs follow.
    In a loop, two rounds are enough for every number of steps, and the second may stop at its first write. *)

From Coq Require Import Arith Lia List Bool.
Import ListNotations.

Section Sweep.
Variable item : Type.
Variable is_write : item -> bool.
Variable test : item -> item -> bool.              (** what the clocks answer *)
Variable ordered : item -> item -> Prop.           (** what it means: must-order of the two tasks, or one task *)
Hypothesis test_sound : forall x y, test x y = true -> ordered x y.
Hypothesis ordered_trans : forall x y z, ordered x y -> ordered y z -> ordered x z.

(** The last write, and the reads since. *)
Definition memory := (option item * list item)%type.

Definition check (m : memory) (y : item) : bool :=
  match m with
  | (last, reads) =>
      if is_write y then
        match reads, last with
        | [], Some w => test w y
        | [], None => true
        | _, _ => forallb (fun r => test r y) reads
        end
      else match last with Some w => test w y | None => true end
  end.

Definition push (m : memory) (y : item) : memory :=
  if is_write y then (Some y, []) else (fst m, y :: snd m).

Fixpoint sweep (m : memory) (l : list item) : bool :=
  match l with [] => true | y :: l => check m y && sweep (push m y) l end.

Definition after (m : memory) (l : list item) : memory := fold_left push l m.

Lemma sweep_app : forall l k m, sweep m (l ++ k) = sweep m l && sweep (after m l) k.
Proof. induction l as [|y l IH]; intros k m; simpl; auto. now rewrite IH, andb_assoc. Qed.

Lemma after_app : forall l k m, after m (l ++ k) = after (after m l) k.
Proof. intros. unfold after. apply fold_left_app. Qed.

(** Every write of the past is the last one or precedes it or a read since; every read of the past is remembered or precedes it. *)
Definition covered (past : list item) (m : memory) : Prop :=
  (forall r, In r (snd m) -> In r past /\ is_write r = false /\ forall w, fst m = Some w -> ordered w r) /\
  (forall x, In x past -> is_write x = true -> match fst m with Some w => x = w \/ ordered x w | None => False end) /\
  (forall x, In x past -> is_write x = false -> In x (snd m) \/ match fst m with Some w => ordered x w | None => False end).

Lemma check_sound : forall past m y, covered past m -> check m y = true ->
  forall x, In x past -> is_write x || is_write y = true -> ordered x y.
Proof.
  intros past (last, reads) y (Reads & Writes & Kept) C x I K. simpl in *.
  destruct (is_write y) eqn:Wy.
  - destruct reads as [|r reads].
    + (* nothing read since the last write *)
      destruct (is_write x) eqn:Wx.
      * pose proof (Writes x I Wx) as W. destruct last as [w|]; [|contradiction].
        destruct W as [->|W]; [now apply test_sound|]. apply ordered_trans with w; auto.
      * destruct (Kept x I Wx) as [[]|W]. destruct last as [w|]; [|contradiction].
        apply ordered_trans with w; auto.
    + assert (All : forall z, In z (r :: reads) -> ordered z y).
      { intros z Iz. apply test_sound. change (forallb (fun z => test z y) (r :: reads) = true) in C.
        rewrite forallb_forall in C. auto. }
      assert (Last : forall w, last = Some w -> ordered w y).
      { intros w E. apply ordered_trans with r; [apply (Reads r)|apply All]; simpl; auto. }
      destruct (is_write x) eqn:Wx.
      * pose proof (Writes x I Wx) as W. destruct last as [w|]; [|contradiction].
        destruct W as [->|W]; [now apply Last|]. apply ordered_trans with w; auto.
      * destruct (Kept x I Wx) as [In'|W]; [now apply All|]. destruct last as [w|]; [|contradiction].
        apply ordered_trans with w; auto.
  - rewrite orb_false_r in K. pose proof (Writes x I K) as W. destruct last as [w|]; [|contradiction].
    destruct W as [->|W]; [now apply test_sound|]. apply ordered_trans with w; auto.
Qed.

Lemma covered_push : forall past m y, covered past m -> check m y = true -> covered (past ++ [y]) (push m y).
Proof.
  intros past m y Cov C. pose proof (check_sound past m y Cov C) as Sound. destruct m as (last, reads).
  destruct Cov as (Reads & Writes & Kept). unfold push. destruct (is_write y) eqn:Wy; simpl in *.
  - split; [intros r []|]. split.
    + intros x I Wx. apply in_app_iff in I. destruct I as [I|[->|[]]]; [right|left; auto].
      apply Sound; auto. now rewrite Wx.
    + intros x I Wx. apply in_app_iff in I. destruct I as [I|[->|[]]]; [|congruence].
      right. apply Sound; auto. now rewrite orb_true_r.
  - split; [|split].
    + intros r [<-|I].
      * split; [apply in_app_iff; right; now left|]. split; auto. intros w Ew. simpl in Ew. subst last.
        apply test_sound. now rewrite Wy in C.
      * destruct (Reads r I) as (A & Bw & Cw). split; [apply in_app_iff; now left|auto].
    + intros x I Wx. apply in_app_iff in I. destruct I as [I|[->|[]]]; [now apply Writes|congruence].
    + intros x I Wx. apply in_app_iff in I. destruct I as [I|[->|[]]]; [|left; now left].
      destruct (Kept x I Wx); [left; now right|now right].
Qed.

(** [x] stands before [y] in [l]. *)
Definition before (l : list item) (x y : item) := exists a b c, l = a ++ x :: b ++ y :: c.

Lemma sweep_from : forall l past m, covered past m -> sweep m l = true ->
  forall x y, (In x past /\ In y l \/ before l x y) -> is_write x || is_write y = true -> ordered x y.
Proof.
  induction l as [|z l IH]; intros past m Cov S x y Where K.
  - destruct Where as [(_ & [])|(a & b & c & E)]. destruct a; discriminate.
  - simpl in S. apply andb_true_iff in S. destruct S as (C & S).
    pose proof (covered_push past m z Cov C) as Cov'.
    destruct Where as [(Ix & [->|Iy])|(a & b & c & E)].
    + now apply (check_sound past m y).
    + apply (IH (past ++ [z]) (push m z) Cov' S); auto. left. split; auto. apply in_app_iff. now left.
    + apply (IH (past ++ [z]) (push m z) Cov' S); auto. destruct a as [|a0 a]; injection E as E0 E.
      * left. subst. split; apply in_app_iff; right; now left.
      * right. exists a, b, c. auto.
Qed.

(** *** The sweep is sufficient: it compares neighbours, and all conflicting pairs are ordered. *)
Theorem sweep_sufficient : forall l, sweep (None, []) l = true ->
  forall x y, before l x y -> is_write x || is_write y = true -> ordered x y.
Proof.
  intros l S x y Bf K. apply (sweep_from l [] (None, [])); auto.
  split; [intros r []|]. split; intros z [].
Qed.

(** *** Loops *)
(** [later x] is the same access one step later; the clocks of a loop do not depend on the step. *)
Variable later : item -> item.
Hypothesis later_write : forall x, is_write (later x) = is_write x.
Hypothesis later_test : forall x y, test (later x) (later y) = test x y.

Definition later_memory (m : memory) : memory := (option_map later (fst m), map later (snd m)).

Lemma later_check : forall m y, check (later_memory m) (later y) = check m y.
Proof.
  intros (last, reads) y. unfold check. simpl. rewrite later_write.
  assert (All : forallb (fun r => test r (later y)) (map later reads) = forallb (fun r => test r y) reads).
  { induction reads as [|r reads IH]; simpl; auto. now rewrite later_test, IH. }
  destruct (is_write y).
  - destruct reads as [|r reads]; [|exact All]. destruct last; simpl; auto.
  - destruct last; simpl; auto.
Qed.

Lemma later_push : forall m y, push (later_memory m) (later y) = later_memory (push m y).
Proof. intros m y. unfold push. rewrite later_write. destruct (is_write y); auto. Qed.

Lemma later_sweep : forall l m, sweep (later_memory m) (map later l) = sweep m l.
Proof. induction l as [|y l IH]; intro m; auto. cbn [sweep map]. now rewrite later_check, later_push, IH. Qed.

Lemma later_after : forall l m, after (later_memory m) (map later l) = later_memory (after m l).
Proof. unfold after. induction l as [|y l IH]; intro m; auto. cbn [fold_left map]. now rewrite later_push, IH. Qed.

(** All rounds of a loop, from step [i] on. *)
Fixpoint rounds (n : nat) (l : list item) : list item :=
  match n with O => [] | S k => l ++ rounds k (map later l) end.

(** The last write of a round forgets what was before. *)
Lemma after_write : forall l m m' w, In w l -> is_write w = true -> after m l = after m' l.
Proof.
  unfold after. induction l as [|y l IH]; intros m m' w [].
  - subst y. intro W. simpl. unfold push at 2 4. now rewrite W.
  - intro W. simpl. now apply IH with (w := w).
Qed.

Lemma sweep_without_writes : forall l reads, (forall x, In x l -> is_write x = false) -> sweep (None, reads) l = true.
Proof.
  induction l as [|y l IH]; intros reads H; auto. assert (Wy : is_write y = false) by (apply H; now left).
  simpl. rewrite Wy. unfold push. simpl. rewrite Wy. apply IH. intros. apply H. now right.
Qed.

Lemma rounds_without_writes : forall n l, (forall x, In x l -> is_write x = false) -> forall x, In x (rounds n l) ->
  is_write x = false.
Proof.
  induction n as [|n IH]; intros l H x I; [destruct I|]. simpl in I. apply in_app_iff in I. destruct I as [I|I]; auto.
  apply (IH (map later l)); auto. intros y Iy. apply in_map_iff in Iy. destruct Iy as (z & <- & Iz). rewrite later_write. auto.
Qed.

Lemma sweep_rounds : forall n l m w, In w l -> is_write w = true -> sweep m l = true ->
  sweep (after m l) (map later l) = true -> sweep m (rounds n l) = true.
Proof.
  induction n as [|n IH]; intros l m w I W S1 S2; auto. simpl. rewrite sweep_app, S1. simpl.
  apply IH with (w := later w); auto.
  - now apply in_map.
  - now rewrite later_write.
  - (* the state after two rounds is the state after one, a step later *)
    rewrite <- S2. rewrite (after_write (map later l) (after m l) (later_memory m) (later w)); auto.
    + now rewrite later_after, later_sweep.
    + now apply in_map.
    + now rewrite later_write.
Qed.

(** *** Two rounds are enough for every number of steps. *)
Theorem two_rounds_suffice : forall l, sweep (None, []) (l ++ map later l) = true ->
  forall n, sweep (None, []) (rounds n l) = true.
Proof.
  intros l S n. rewrite sweep_app in S. apply andb_true_iff in S. destruct S as (S1 & S2).
  destruct (existsb is_write l) eqn:E.
  - apply existsb_exists in E. destruct E as (w & I & W). now apply sweep_rounds with (w := w).
  - apply sweep_without_writes, rounds_without_writes. intros x I. destruct (is_write x) eqn:W; auto.
    assert (existsb is_write l = true) by (apply existsb_exists; eauto). congruence.
Qed.

(** ... and the second round may stop at any write of it: what follows was checked in the first. *)
Theorem second_round_may_stop : forall a w b, is_write w = true ->
  sweep (None, []) ((a ++ w :: b) ++ map later (a ++ [w])) = true ->
  sweep (None, []) ((a ++ w :: b) ++ map later (a ++ w :: b)) = true.
Proof.
  intros a w b W S. rewrite sweep_app in *. apply andb_true_iff in S. destruct S as (S1 & S2). rewrite S1. simpl.
  rewrite map_app in *. rewrite sweep_app in *. apply andb_true_iff in S2. destruct S2 as (S2 & S3). rewrite S2. simpl in *.
  apply andb_true_iff in S3. destruct S3 as (S3 & _). rewrite S3. simpl.
  unfold push. rewrite later_write, W.
  apply andb_true_iff in S1. destruct S1 as (_ & S1). simpl in S1. apply andb_true_iff in S1.
  destruct S1 as (_ & S1). unfold push in S1. rewrite W in S1.
  change (Some (later w), @nil item) with (later_memory (Some w, [])). now rewrite later_sweep.
Qed.

Theorem loop_sweep_sufficient : forall l, sweep (None, []) (l ++ map later l) = true ->
  forall n x y, before (rounds n l) x y -> is_write x || is_write y = true -> ordered x y.
Proof. intros l S n x y Bf K. apply (sweep_sufficient (rounds n l)); auto. now apply two_rounds_suffice. Qed.
End Sweep.
