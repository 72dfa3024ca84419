(** The extracted checker is sound. *)

From Coq Require Import Arith ZArith Lia List Bool.
From AMK Require Import Sums Semantics MustOrder Exact Events Loop OneStep Periodic Determinism Sweep Checker.
Import ListNotations.

Section Soundness.
Variable X : tables.
Notation nq := (Checker.nq X).
Notation queue_of := (Checker.queue_of X).
Notation task_at := (Checker.task_at X).
Notation tag_counter := (Checker.tag_counter X).
Notation tag_signal := (Checker.tag_signal X).
Notation signals := (Checker.signals X).
Notation order_loop := (Checker.order_loop X).
Notation live_loop := (Checker.live_loop X).
Notation accesses := (Checker.accesses X).
Notation touches := (Checker.touches X).
Notation clock_p := (Checker.clock_p X).
Notation wait_covers_b := (Checker.wait_covers_b X).
Notation entry_p := (Checker.entry_p X).
Notation periodic_b := (Checker.periodic_b X).
Notation clock_u := (Checker.clock_u X).
Notation unrolled_b := (Checker.unrolled_b X).
Notation clash := (Checker.clash X).
Notation pair_b := (Checker.pair_b X).
Notation pairs_b := (Checker.pairs_b X).
Notation valid := (Checker.valid X).
Notation follows := (Checker.follows X).
Notation look := (Checker.look X).
Notation walk := (Checker.walk X).
Notation items := (Checker.items X).
Notation cuts := (Checker.cuts X).
Notation cell_b := (Checker.cell_b X).
Notation complete_b := (Checker.complete_b X).
Notation cells_b := (Checker.cells_b X).
Notation ord_p := (Checker.ord_p X).
Notation ord_u := (Checker.ord_u X).
Notation places := (Checker.places X).
Notation parse := (Checker.parse X).
Notation n_all := (Checker.n_all X).
Notation check := (Checker.check X).

Lemma all_tasks_true : forall B f, all_tasks B f = true -> forall q j, q < lqueues B -> j < per_step B q -> f q j = true.
Proof.
  intros B f H q j Hq Hj. unfold all_tasks in H. rewrite forallb_forall in H.
  assert (R : forallb (f q) (seq 0 (per_step B q)) = true) by (apply H, in_seq; lia).
  rewrite forallb_forall in R. apply R, in_seq. lia.
Qed.

Lemma counted_b_sound : forall B, counted_b B = true -> counted B.
Proof.
  intros B H q j c t e Hq Hj I. pose proof (all_tasks_true B _ H q j Hq Hj) as R. simpl in R.
  rewrite forallb_forall in R. specialize (R _ I). simpl in R. apply andb_true_iff in R. destruct R as (_ & R).
  now apply Nat.leb_le in R.
Qed.

Lemma enabled_b_sound : forall P s q, enabled_b P s q = true -> enabled P s q.
Proof.
  intros P s q H. unfold enabled_b in H. apply andb_true_iff in H. destruct H as (H & W). apply andb_true_iff in H.
  destruct H as (A & C). apply Nat.ltb_lt in A, C. split; [|split]; auto.
  intros c t I. rewrite forallb_forall in W. specialize (W _ I). simpl in W. now apply Nat.leb_le in W.
Qed.

Lemma replay_sound : forall P name order s, reach P s -> replay_b P name order s = true -> exists g, reach P g /\ complete P g.
Proof.
  intros P name order. induction order as [|id order IH]; intros s R H; simpl in H.
  - exists s. split; auto. intros q Hq. rewrite forallb_forall in H. specialize (H q).
    apply Nat.eqb_eq, H, in_seq. lia.
  - destruct (find _ _) as [q|]; [|discriminate]. apply andb_true_iff in H. destruct H as (E & H).
    apply (IH (advance s q)); auto. apply reach_step; auto. now apply enabled_b_sound.
Qed.

(** Deadlock: for every number of steps. *)
Theorem replay_decides : counted_b live_loop = true ->
  forall order name, replay_b (unroll live_loop 1) name order start = true -> forall T, deadlock_free (unroll live_loop T).
Proof.
  intros W order name H. apply one_step_suffices; [now apply counted_b_sound|].
  destruct (replay_sound _ name order start (reach_start _) H) as (g & R & C). now apply one_complete_run_suffices with (g := g).
Qed.

Lemma order_counted : counted live_loop -> counted order_loop.
Proof. intros W q j c t e Hq Hj I. apply (W q j c t e Hq Hj). simpl. apply in_app_iff. now left. Qed.

Lemma live_reach : forall T s, reach (unroll live_loop T) s -> reach (unroll order_loop T) s.
Proof.
  intros T. apply weaker_reach; auto. intros q i c th I. apply in_unrolled_waits in I. apply in_unrolled_waits.
  destruct I as (t & e & I & ->). exists t, e. split; [|reflexivity]. simpl in *. apply in_app_iff. now left.
Qed.

Lemma live_must : forall T qa ia qb ib, must (unroll order_loop T) qa ia qb ib -> must (unroll live_loop T) qa ia qb ib.
Proof.
  intros T. apply weaker_must; auto. intros q i c th I. apply in_unrolled_waits in I. apply in_unrolled_waits.
  destruct I as (t & e & I & ->). exists t, e. split; [|reflexivity]. simpl in *. apply in_app_iff. now left.
Qed.

(** In the live schedule a task with tagged reads starts only after their writers have ended. *)
Lemma zsum_only : forall n f k, (forall i, (i < n)%nat -> i <> k -> f i = 0%Z) -> (k < n)%nat -> zsum n f = f k.
Proof.
  induction n as [|n IH]; intros f k H Hk; [lia|]. simpl. destruct (Nat.eq_dec k n) as [->|N].
  - assert (zsum n f = 0%Z); [|lia]. assert (Z0 : forall m, (m <= n)%nat -> zsum m f = 0%Z); [|auto].
    induction m as [|m IHm]; simpl; intro Hm; auto. rewrite IHm by lia. rewrite H; lia.
  - rewrite (IH f k); try lia; [rewrite (H n); lia|]. intros. apply H; lia.
Qed.

Theorem live_waits_for_writers : counted_b live_loop = true -> forall T s q p k,
  reach (unroll live_loop T) s -> enabled (unroll live_loop T) s q ->
  In (p, k) (t_after (task_at q (s q mod length (queue_of q)))) -> p < nq -> k < length (queue_of p) ->
  s q / length (queue_of q) * length (queue_of p) + k < s p.
Proof.
  intros W T s q p k R En I Hp Hk. apply counted_b_sound in W.
  assert (Iw : In (tag_counter p k, 1, false) (lwaits live_loop q (s q mod per_step live_loop q))).
  { simpl. apply in_app_iff. right. apply in_map_iff. exists (p, k). auto. }
  assert (Hl : s q < T * per_step live_loop q) by apply En. destruct (position_lt live_loop q (s q) T Hl) as (Lq & Hj).
  assert (Hq : q < nq) by apply En. pose proof (W q _ _ _ _ Hq Hj Iw) as N1.
  pose proof (enabled_wait live_loop T s q _ _ _ En Iw) as Ew. rewrite (count_by_position live_loop T s R) in Ew.
  assert (Wt : forall x j, (x < nq)%nat -> weight live_loop x j (tag_counter p k) = if (Nat.eqb x p && Nat.eqb j k) then 1%Z else
    0%Z).
  { intros x j Hx. unfold weight. simpl. unfold Checker.signals, Checker.tag_counter.
    assert (F : counters X + (k * nq + p) <? counters X = false) by (apply Nat.ltb_ge; lia).
    rewrite F. unfold Checker.tag_signal. replace (counters X + (k * nq + p) - counters X) with (k * nq + p) by lia.
    replace (k * nq + p) with (p + k * nq) by lia. rewrite Nat.mod_add, Nat.div_add, Nat.mod_small, Nat.div_small by lia. simpl.
    rewrite (Nat.eqb_sym p x), (Nat.eqb_sym k j). now destruct (Nat.eqb x p && Nat.eqb j k). }
  assert (C : over_tasks live_loop (fun x j => (weight live_loop x j (tag_counter p k) * Z.of_nat (times live_loop x (s x) j))%Z) =
              Z.of_nat (times live_loop p (s p) k)).
  { unfold over_tasks. rewrite (zsum_only _ _ p); auto.
    - rewrite (zsum_only _ _ k); auto; [rewrite Wt, !Nat.eqb_refl by auto; apply Z.mul_1_l|].
      intros j Hj' N. rewrite Wt by auto. apply Nat.eqb_neq in N. rewrite N, andb_false_r. apply Z.mul_0_l.
    - intros x Hx N. apply Nat.eqb_neq in N. assert (Z0 : forall m, zsum m (fun j => (weight live_loop x j (tag_counter p k) *
      Z.of_nat (times live_loop x (s x) j))%Z) = 0%Z); auto.
      induction m as [|m IH]; simpl; auto. rewrite IH, Wt, N by auto. apply Z.mul_0_l. }
  rewrite C in Ew. rewrite ztotal_total in Ew. simpl in Ew.
  set (i := s q / length (queue_of q)) in *. change (per_step live_loop p) with (length (queue_of p)) in *.
  assert (i < times live_loop p (s p) k) by nia. now apply (times_instance live_loop p (s p) k i).
Qed.

(** Periodic clocks. *)
Lemma wait_covers_b_sound : forall v q j r x w, wait_covers_b v q j r x w = true -> wait_covers order_loop v q j r x w.
Proof.
  intros v q j r x ((c, t), e) H. unfold Checker.wait_covers_b in H. apply andb_true_iff in H. destruct H as (A & C). split.
  - intros p k Hp Hk Wk. pose proof (all_tasks_true _ _ A p k Hp Hk) as E. simpl in E. apply orb_true_iff in E.
    destruct E as [E|E]; [apply Nat.eqb_eq in E; unfold weight in Wk; simpl in Wk; rewrite E in Wk; simpl in Wk; lia|].
    destruct (plus v p k r); congruence.
  - now apply Z.ltb_lt in C.
Qed.

Lemma entry_p_sound : forall v q j r x, entry_p v q j r x = true -> periodic_entry_ok order_loop v q j r x.
Proof.
  intros v q j r x H. unfold Checker.entry_p in H. apply orb_true_iff in H. destruct H as [H|H].
  - destruct j as [|j].
    + destruct (plus v q (length (queue_of q) - 1) r) as [y|] eqn:P; [|discriminate]. apply Z.leb_le in H.
      right. left. exists y. auto.
    + destruct (plus v q j r) as [y|] eqn:P; [|discriminate]. apply Z.leb_le in H. left. exists y.
      split; [lia|]. split; auto. now replace (S j - 1) with j by lia.
  - apply existsb_exists in H. destruct H as (w & I & H). right. right. exists w. split; auto. now apply wait_covers_b_sound.
Qed.

Lemma periodic_b_sound : forall table, periodic_b table = true -> periodic_ok order_loop (clock_p table).
Proof.
  intros table H q j r Hq Hj Hr Lr. pose proof (all_tasks_true _ _ H q j Hq Hj) as R. simpl in R. rewrite forallb_forall in R.
  specialize (R r). assert (I : In r (seq 0 nq)) by (apply in_seq; simpl in Hr; lia). specialize (R I).
  apply orb_true_iff in R. destruct R as [R|R]; [apply Nat.eqb_eq in R; simpl in Lr; lia|].
  apply andb_true_iff in R. destruct R as (A & C). split.
  - intros y P. rewrite P in A. now apply Z.leb_le in A.
  - intros x V. rewrite V in C. now apply entry_p_sound.
Qed.

(** Written-out clocks. *)
Lemma unrolled_b_sound : forall table n U, unrolled_b table n U = true -> local_ok (unroll order_loop U) (clock_u table n).
Proof.
  intros table n U H q m r Hq Hm. unfold Checker.unrolled_b in H. rewrite forallb_forall in H.
  assert (Iq : In q (seq 0 nq)) by (apply in_seq; simpl in Hq; lia). specialize (H q Iq). rewrite forallb_forall in H.
  specialize (H m). assert (Im : In m (seq 0 (len (unroll order_loop U) q))) by (apply in_seq; lia). specialize (H Im).
  rewrite forallb_forall in H. unfold entry_ok. destruct (lt_dec r nq) as [Hr|Hr].
  - assert (Ir : In r (seq 0 nq)) by (apply in_seq; lia). specialize (H r Ir). apply orb_true_iff in H. destruct H as [H|H].
    + apply orb_true_iff in H. destruct H as [H|H]; [left; now apply Nat.eqb_eq in H|].
      apply andb_true_iff in H. destruct H as (A & C). apply Nat.ltb_lt in A. apply Nat.leb_le in C. right. left. auto.
    + apply existsb_exists in H. destruct H as ((c, t) & I & H). apply Nat.ltb_lt in H. right. right. exists c, t. auto.
  - left. unfold Checker.clock_u. simpl in Hq. destruct (Nat.eqb r q) eqn:E; [apply Nat.eqb_eq in E; lia|].
    destruct (r <? nq) eqn:E2; auto. apply Nat.ltb_lt in E2. contradiction.
Qed.

(** What an ordering test has to mean. *)
Definition ord_means (ord : nat -> nat -> nat -> nat -> nat -> nat -> bool) := forall T qa ja i qb jb k, T <= steps X ->
  qa < nq -> qb < nq -> ja < length (queue_of qa) -> jb < length (queue_of qb) -> qa <> qb -> ord qa ja i qb jb k = true ->
  must (unroll order_loop T) qa (i * length (queue_of qa) + ja) qb (k * length (queue_of qb) + jb).

Lemma ord_p_sound : forall table, periodic_b table = true -> ord_means (ord_p table).
Proof.
  intros table H T qa ja i qb jb k _ Ha Hb Ja Jb N O. apply periodic_b_sound in H. unfold Checker.ord_p in O.
  destruct (clock_p table qb jb qa) as [x|] eqn:V; [|discriminate]. apply andb_true_iff in O. destruct O as (A & C).
  apply Z.leb_le in A. apply Nat.leb_le in C. replace k with (i + (k - i))%nat by lia.
  apply (periodic_sound order_loop (clock_p table) H qa ja qb jb (k - i)); auto. exists x. split; auto.
  unfold lz. simpl. nia.
Qed.

Lemma ord_u_sound : forall table n U, steps X <= U -> unrolled_b table n U = true -> ord_means (ord_u table n).
Proof.
  intros table n U HU H T qa ja i qb jb k HT Ha Hb Ja Jb N O. apply unrolled_b_sound in H. apply Nat.ltb_lt in O.
  assert (M := certificate_sound _ _ H qa (i * length (queue_of qa) + ja) qb (k * length (queue_of qb) + jb) O).
  intros s R En E. apply M; auto; [apply unroll_reach_longer with (T := T)|apply unroll_enabled_longer with (T := T)]; auto; lia.
Qed.

(** Conflicts. *)
Lemma meet_true : forall s t lo hi lo' hi' z, In (lo, hi) s -> In (lo', hi') t -> (lo <= z < hi)%Z -> (lo' <= z < hi')%Z ->
  meet s t = true.
Proof.
  intros s t lo hi lo' hi' z I I' Hz Hz'. apply existsb_exists. exists (lo, hi). split; auto.
  apply existsb_exists. exists (lo', hi'). split; auto. simpl. apply Z.ltb_lt. lia.
Qed.

(** Pairs of which one moves. *)
Lemma pair_b_sound : forall ord x qa ja qb jb, pair_b ord x qa ja qb jb = true -> forall i k, i <= k -> k < steps X ->
  clash x qa ja i qb jb k = true -> ord qa ja i qb jb k = true \/ (i = k /\ ord qb jb k qa ja i = true).
Proof.
  intros ord x qa ja qb jb H i k Le Lt Cl. unfold Checker.pair_b in H. apply orb_true_iff in H. destruct H as [H|H].
  - exfalso. apply andb_true_iff in H. destruct H as (Sa & Sb). rewrite forallb_forall in Sa, Sb.
    unfold Checker.clash in Cl. apply existsb_exists in Cl. destruct Cl as (a & Ia & Cl). apply existsb_exists in Cl.
    destruct Cl as (b & Ib & Cl). rewrite (Sa a Ia), (Sb b Ib) in Cl. discriminate.
  - rewrite forallb_forall in H. assert (Ii : In i (seq 0 (steps X))) by (apply in_seq; lia). specialize (H i Ii).
    rewrite forallb_forall in H. assert (Id : In (k - i) (seq 0 (steps X - i))) by (apply in_seq; lia). specialize (H _ Id).
    replace (i + (k - i)) with k in H by lia. rewrite Cl in H. simpl in H. apply orb_true_iff in H. destruct H as [H|H]; auto.
    apply andb_true_iff in H. destruct H as (E & H). apply Nat.eqb_eq in E. right. assert (i = k) as -> by lia. auto.
Qed.

Lemma clash_true : forall x qa ja i qb jb k a b lo hi lo' hi' z, In a (accesses x qa ja) -> In b (accesses x qb jb) ->
  In (lo, hi) (spans_at a i) -> In (lo', hi') (spans_at b k) -> (lo <= z < hi)%Z -> (lo' <= z < hi')%Z ->
  a_write a || a_write b = true -> still a && still b = false -> clash x qa ja i qb jb k = true.
Proof.
  intros x qa ja i qb jb k a b lo hi lo' hi' z Ia Ib Sa Sb Za Zb W St.
  apply existsb_exists. exists a. split; auto. apply existsb_exists. exists b. split; auto.
  rewrite W, St. simpl. now apply meet_true with (1 := Sa) (2 := Sb) (z := z).
Qed.

(** *** The sweep over accesses that stand still *)
Section Cells.
Variable ord : nat -> nat -> nat -> nat -> nat -> nat -> bool.
Hypothesis means : ord_means ord.
Variable T : nat.
Hypothesis HT : T <= steps X.

Definition instance (a : item) : nat := i_step a * length (queue_of (i_queue a)) + i_pos a.
Definition item_ordered (a b : item) : Prop :=
  (i_queue a = i_queue b /\ instance a = instance b) \/ must (unroll order_loop T) (i_queue a) (instance a) (i_queue b) (instance
    b).

Lemma follows_sound : forall a b, follows ord a b = true -> item_ordered a b.
Proof.
  intros a b H. unfold Checker.follows in H. apply andb_true_iff in H. destruct H as (V & H). apply andb_true_iff in V.
  destruct V as (Va & Vb). unfold Checker.valid in Va, Vb. apply andb_true_iff in Va, Vb. destruct Va as (Qa & Ja), Vb as (Qb & Jb).
  apply Nat.ltb_lt in Qa, Ja, Qb, Jb. unfold item_ordered, instance. destruct (Nat.eqb (i_queue a) (i_queue b)) eqn:E.
  - apply Nat.eqb_eq in E. rewrite <- E in *. apply orb_true_iff in H. destruct H as [H|H].
    + apply Nat.ltb_lt in H. right. apply must_same_queue. nia.
    + apply andb_true_iff in H. destruct H as (S1 & S2). apply Nat.eqb_eq in S1. apply Nat.leb_le in S2. rewrite <- S1.
      destruct (Nat.eq_dec (i_pos a) (i_pos b)) as [->|N]; [left; auto|]. right. apply must_same_queue. lia.
  - apply Nat.eqb_neq in E. right. now apply means.
Qed.

Lemma item_ordered_trans : forall a b c, item_ordered a b -> item_ordered b c -> item_ordered a c.
Proof.
  intros a b c [(Q1 & I1)|M1] [(Q2 & I2)|M2]; unfold item_ordered.
  - left. split; congruence.
  - right. now rewrite Q1, I1.
  - right. now rewrite <- Q2, <- I2.
  - right. now apply must_trans with (qb := i_queue b) (ib := instance b).
Qed.

Lemma walk_sweep : forall l m, walk ord m l = true -> sweep item i_write (follows ord) m l = true.
Proof.
  induction l as [|y l IH]; intros m H; auto. simpl in H. apply andb_true_iff in H. destruct H as (L & H).
  cbn [sweep]. rewrite (IH _ H), andb_true_r. unfold Checker.look in L. apply andb_true_iff in L. destruct L as (A & C).
  destruct m as (last, reads). simpl in A, C. unfold Sweep.check. destruct (i_write y); [simpl in C|exact A].
  destruct reads; [destruct last; auto|exact C].
Qed.

Lemma swept : forall l, walk ord (None, []) l = true -> forall a b, before item l a b -> i_write a || i_write b = true ->
  item_ordered a b.
Proof.
  intros l H. apply (sweep_sufficient item i_write (follows ord) item_ordered follows_sound item_ordered_trans).
  now apply walk_sweep.
Qed.

(** Items of a round, as seen in all rounds. *)
Fixpoint at_round (n : nat) (a : item) : item := match n with O => a | S n => at_round n (later_item a) end.

Lemma at_round_is : forall n a, at_round n a = Item (i_queue a) (i_pos a) (n + i_step a) (i_write a).
Proof.
  induction n as [|n IH]; intro a; simpl; [now destruct a|]. rewrite IH. simpl. f_equal. lia.
Qed.

Lemma in_rounds : forall n l a i, In a l -> i < n -> In (at_round i a) (rounds item later_item n l).
Proof.
  induction n as [|n IH]; intros l a i I Hi; [lia|]. simpl. apply in_app_iff. destruct i as [|i]; [now left|].
  right. simpl. apply IH; [now apply in_map|lia].
Qed.

Lemma before_app_r : forall l k a b, before item k a b -> before item (l ++ k) a b.
Proof. intros l k a b (u & v & w & ->). exists (l ++ u), v, w. now rewrite <- app_assoc. Qed.

Lemma before_app_l : forall l k a b, before item l a b -> before item (l ++ k) a b.
Proof. intros l k a b (u & v & w & ->). exists u, v, (w ++ k). rewrite <- app_assoc. simpl. now rewrite <- app_assoc. Qed.

Lemma before_both : forall l k a b, In a l -> In b k -> before item (l ++ k) a b.
Proof.
  intros l k a b Ia Ib. apply in_split in Ia, Ib. destruct Ia as (u & v & ->), Ib as (u' & v' & ->).
  exists u, (v ++ u'), v'. now rewrite <- !app_assoc.
Qed.

Lemma before_map : forall (f : item -> item) l a b, before item l a b -> before item (map f l) (f a) (f b).
Proof. intros f l a b (u & v & w & ->). exists (map f u), (map f v), (map f w). now rewrite map_app; simpl; rewrite map_app. Qed.

Lemma before_rounds_same : forall n l a b i, before item l a b -> i < n ->
  before item (rounds item later_item n l) (at_round i a) (at_round i b).
Proof.
  induction n as [|n IH]; intros l a b i Bf Hi; [lia|]. simpl. destruct i as [|i].
  - now apply before_app_l.
  - apply before_app_r. simpl. apply IH; [now apply before_map|lia].
Qed.

Lemma before_rounds_later : forall n l a b i k, In a l -> In b l -> i < k -> k < n ->
  before item (rounds item later_item n l) (at_round i a) (at_round k b).
Proof.
  induction n as [|n IH]; intros l a b i k Ia Ib Lt Hk; [lia|]. simpl. destruct k as [|k]; [lia|]. destruct i as [|i].
  - apply before_both; auto. simpl. apply in_rounds; [now apply in_map|lia].
  - apply before_app_r. simpl. apply IH; try (now apply in_map); lia.
Qed.

Lemma before_or : forall l a b, In a l -> In b l -> a <> b -> before item l a b \/ before item l b a.
Proof.
  induction l as [|y l IH]; intros a b Ia Ib N; [destruct Ia|]. destruct Ia as [->|Ia], Ib as [->|Ib]; try contradiction.
  - left. apply in_split in Ib. destruct Ib as (u & v & ->). exists [], u, v. auto.
  - right. apply in_split in Ia. destruct Ia as (u & v & ->). exists [], u, v. auto.
  - destruct (IH a b Ia Ib N) as [Bf|Bf]; [left|right]; apply (before_app_r [y]); auto.
Qed.

(** The second round of a loop stops at its first write. *)
Lemma up_to_write_split : forall l, (exists u w v, l = u ++ w :: v /\ i_write w = true /\
  up_to_write l = u ++ [w]) \/ up_to_write l = l.
Proof.
  induction l as [|y l [(u & w & v & E & W & Up)|Up]]; [now right| |].
  - left. simpl. destruct (i_write y) eqn:Y.
    + exists [], y, l. auto.
    + exists (y :: u), w, v. rewrite E in *. rewrite Up. auto.
  - simpl. destruct (i_write y) eqn:Y.
    + left. exists [], y, l. auto.
    + right. now rewrite Up.
Qed.

Variable periodic : bool.
Hypothesis shift : periodic = true -> forall qa ja i qb jb k, ord qa ja (S i) qb jb (S k) = ord qa ja i qb jb k.

Lemma all_rounds : forall l, cell_b ord periodic l = true ->
  sweep item i_write (follows ord) (None, []) (rounds item later_item (steps X) l) = true.
Proof.
  intros l H. unfold Checker.cell_b in H. destruct (negb periodic) eqn:Pe; [now apply walk_sweep|].
  apply negb_false_iff in Pe. apply walk_sweep in H. destruct (steps X <=? 1) eqn:Le.
  - apply Nat.leb_le in Le. destruct (steps X) as [|[|n]]; [reflexivity| |lia]. simpl. now rewrite app_nil_r.
  - assert (SW : forall a, i_write (later_item a) = i_write a) by reflexivity.
    assert (ST : forall a b, follows ord (later_item a) (later_item b) = follows ord a b).
    { intros a b. unfold Checker.follows, Checker.valid. simpl. rewrite (shift Pe). reflexivity. }
    apply (two_rounds_suffice item i_write (follows ord) later_item SW ST).
    destruct (up_to_write_split l) as [(u & w & v & E & W & Up)|Up]; rewrite Up in H; auto.
    rewrite E in *. now apply (second_round_may_stop item i_write (follows ord) later_item SW ST u w v W).
Qed.

Lemma touching_items : forall x order q j a lo hi z, In (q, j) order -> In a (accesses x q j) -> still a = true ->
  In (lo, hi) (spans_at a 0) -> (lo <= z < hi)%Z -> In (Item q j 0 (a_write a)) (items x order z).
Proof.
  intros x order q j a lo hi z Io Ia St Is Hz. apply in_flat_map. exists (q, j). split; auto. simpl.
  apply in_map_iff. exists a. split; auto. apply filter_In. split; auto. rewrite St. simpl.
  apply existsb_exists. exists (lo, hi). split; auto. simpl. apply andb_true_iff. split; [apply Z.leb_le|apply Z.ltb_lt]; lia.
Qed.

(** The piece that a byte lies in. *)
Lemma piece : forall (l : list Z) z, (exists c, In c l /\ (c <= z)%Z) -> exists c, In c l /\ (c <= z)%Z /\ forall d, In d l ->
  (d <= z)%Z -> (d <= c)%Z.
Proof.
  induction l as [|y l IH]; intros z (c & I & Le); [destruct I|].
  destruct (Z_le_gt_dec y z) as [Hy|Hy].
  - destruct (existsb (fun c => Z.leb c z) l) eqn:Ex.
    + apply existsb_exists in Ex. destruct Ex as (c0 & I0 & L0). apply Z.leb_le in L0.
      destruct (IH z) as (m & Im & Lm & Max); [eauto|]. exists (Z.max y m). split; [|split; [lia|]].
      * destruct (Z.max_spec y m) as [(_ & ->)|(_ & ->)]; [now right|now left].
      * intros d [->|Id] Ld; [lia|]. pose proof (Max d Id Ld). lia.
    + exists y. split; [now left|]. split; auto. intros d [->|Id] Ld; [lia|]. exfalso.
      assert (existsb (fun c => Z.leb c z) l = true); [|congruence]. apply existsb_exists. exists d. split; auto.
        now apply Z.leb_le.
  - destruct I as [->|I]; [lia|]. destruct (IH z) as (m & Im & Lm & Max); [eauto|]. exists m. split; [now right|]. split; auto.
    intros d [->|Id] Ld; [lia|auto].
Qed.

Lemma cells_sound : forall order, cells_b ord periodic order = true -> forall x qa ja i qb jb k a b lo hi lo' hi' z,
  x < assignments X -> qa < nq -> ja < length (queue_of qa) -> qb < nq -> jb < length (queue_of qb) -> qa <> qb ->
    i < steps X -> k < steps X ->
  In a (accesses x qa ja) -> In b (accesses x qb jb) -> still a = true -> still b = true ->
  In (lo, hi) (spans_at a i) -> In (lo', hi') (spans_at b k) -> (lo <= z < hi)%Z -> (lo' <= z < hi')%Z ->
    a_write a || a_write b = true ->
  must (unroll order_loop T) qa (i * length (queue_of qa) + ja) qb (k * length (queue_of qb) + jb) \/
  must (unroll order_loop T) qb (k * length (queue_of qb) + jb) qa (i * length (queue_of qa) + ja).
Proof.
  intros order H x qa ja i qb jb k a b lo hi lo' hi' z Hx Ha Ja Hb Jb N Hi Hk Ia Ib Sa Sb Pa Pb Za Zb W.
  unfold Checker.cells_b in H. apply andb_true_iff in H. destruct H as (Comp & H).
  assert (Oin : forall q j, q < nq -> j < length (queue_of q) -> In (q, j) order).
  { intros q j Hq Hj. pose proof (all_tasks_true _ _ Comp q j Hq Hj) as E. simpl in E. apply existsb_exists in E.
    destruct E as ((q', j') & I & E). apply andb_true_iff in E. destruct E as (E1 & E2). apply Nat.eqb_eq in E1, E2. simpl in *.
      now subst. }
  assert (Same : forall c n, still c = true -> spans_at c n = spans_at c 0).
  { intros c n Sc. unfold still, spans_at in *. destruct (a_spans c) as [|s [|]]; congruence. }
  rewrite (Same a i Sa) in Pa. rewrite (Same b k Sb) in Pb.
  assert (Cut : forall q j c l h, q < nq -> j < length (queue_of q) -> In c (accesses x q j) -> still c = true ->
    In (l, h) (spans_at c 0) -> In l (cuts x order)).
  { intros q j c l h Hq Hj Ic Sc Il. apply in_flat_map. exists (q, j). split; [now apply Oin|]. apply in_flat_map. exists c.
    split; auto.
    rewrite Sc. apply in_app_iff. left. apply in_map_iff. exists (l, h). auto. }
  destruct (piece (cuts x order) z) as (c & Ic & Lc & Max); [exists lo; split; [now apply (Cut qa ja a lo hi)|lia]|].
  pose proof (Max lo (Cut qa ja a lo hi Ha Ja Ia Sa Pa)). pose proof (Max lo' (Cut qb jb b lo' hi' Hb Jb Ib Sb Pb)).
  rewrite forallb_forall in H. assert (Ix : In x (seq 0 (assignments X))) by (apply in_seq; lia). specialize (H x Ix).
  rewrite forallb_forall in H. specialize (H c). rewrite nodup_In in H. specialize (H Ic).
  set (l := items x order c) in *. apply all_rounds in H.
  assert (Ta : In (Item qa ja 0 (a_write a)) l) by (apply (touching_items x order qa ja a lo hi c); auto; lia).
  assert (Tb : In (Item qb jb 0 (a_write b)) l) by (apply (touching_items x order qb jb b lo' hi' c); auto; lia).
  set (A := Item qa ja 0 (a_write a)) in *. set (Bb := Item qb jb 0 (a_write b)) in *.
  assert (Use : forall u v iu iv, before item (rounds item later_item (steps X) l) (at_round iu u) (at_round iv v) ->
    i_step u = 0 -> i_step v = 0 ->
    i_write u || i_write v = true -> i_queue u <> i_queue v ->
    must (unroll order_loop T) (i_queue u) (iu * length (queue_of (i_queue u)) + i_pos u) (i_queue v) (iv * length (queue_of
      (i_queue v)) + i_pos v)).
  { intros u v iu iv Bf Zu Zv Wuv Nuv.
    pose proof (sweep_sufficient item i_write (follows ord) item_ordered follows_sound item_ordered_trans _ H _ _ Bf) as O.
    rewrite !at_round_is in O. simpl in O. specialize (O Wuv). unfold item_ordered, instance in O. simpl in O.
    rewrite Zu, Zv, !Nat.add_0_r in O. destruct O as [(Eq & _)|M]; [contradiction|auto]. }
  destruct (lt_eq_lt_dec i k) as [[Lt| ->]|Gt].
  - left. apply (Use A Bb i k); auto. now apply before_rounds_later.
  - assert (NAB : A <> Bb) by (unfold A, Bb; congruence). destruct (before_or l A Bb Ta Tb NAB) as [Bf|Bf].
    + left. apply (Use A Bb k k); auto. now apply before_rounds_same.
    + right. apply (Use Bb A k k); auto; [now apply before_rounds_same|simpl; now rewrite orb_comm].
  - right. apply (Use Bb A k i); auto; [now apply before_rounds_later|simpl; now rewrite orb_comm].
Qed.
End Cells.

Lemma ord_p_shift : forall table qa ja i qb jb k, ord_p table qa ja (S i) qb jb (S k) = ord_p table qa ja i qb jb k.
Proof.
  intros table qa ja i qb jb k. unfold Checker.ord_p. destruct (clock_p table qb jb qa) as [x|]; auto.
  replace (Z.of_nat (S k) - Z.of_nat (S i))%Z with (Z.of_nat k - Z.of_nat i)%Z by lia. reflexivity.
Qed.

Theorem conflicts_ordered : forall ord periodic order, ord_means ord ->
  (periodic = true -> forall qa ja i qb jb k, ord qa ja (S i) qb jb (S k) = ord qa ja i qb jb k) ->
  pairs_b ord = true -> cells_b ord periodic order = true ->
  forall T x, T <= steps X -> x < assignments X -> race_free (unroll live_loop T) Z (touches false x) (touches true x).
Proof.
  intros ord periodic order Means Shift Pairs Cells T x HT Hx. apply ordered_is_race_free. intros qa ma qb mb Ra Rb N C.
  simpl in Ra, Rb. destruct Ra as (Ha & Ma), Rb as (Hb & Mb).
  assert (Both : exists z wa wb, touches wa x qa ma z /\ touches wb x qb mb z /\ wa || wb = true).
  { destruct C as (z & [(Wa & [Rb|Wb])|(Ra & Wb)]);
      [exists z, true, false|exists z, true, true|exists z, false, true]; auto. }
  destruct Both as (z & wa & wb & (a & lo & hi & Ia & Wa & Pa & Za) & (b & lo' & hi' & Ib & Wb & Pb & Zb) & W).
  destruct (position_lt order_loop qa ma T Ma) as (La & Ja). destruct (position_lt order_loop qb mb T Mb) as (Lb & Jb).
  change (per_step order_loop qa) with (length (queue_of qa)) in *.
    change (per_step order_loop qb) with (length (queue_of qb)) in *.
  set (ja := ma mod length (queue_of qa)) in *. set (i := ma / length (queue_of qa)) in *.
  set (jb := mb mod length (queue_of qb)) in *. set (k := mb / length (queue_of qb)) in *.
  assert (Ea : ma = i * length (queue_of qa) + ja) by (pose proof (Nat.div_mod ma (length (queue_of qa))); lia).
  assert (Eb : mb = k * length (queue_of qb) + jb) by (pose proof (Nat.div_mod mb (length (queue_of qb))); lia).
  assert (Hi : i < T) by nia. assert (Hk : k < T) by nia. rewrite Ea, Eb. rewrite <- Wa, <- Wb in W.
  destruct (still a && still b) eqn:St.
  - apply andb_true_iff in St. destruct St as (Sa & Sb).
    destruct (cells_sound ord Means T HT periodic Shift order Cells x qa ja i qb jb k a b lo hi lo' hi' z) as [M|M]; auto; try lia;
      [left|right]; now apply live_must.
  - assert (Pair : forall qa ja qb jb, qa < nq -> ja < length (queue_of qa) -> qb < nq -> jb < length (queue_of qb) -> qa <> qb ->
                   pair_b ord x qa ja qb jb = true).
    { intros q j r l A1 A2 A3 A4 A5. pose proof (all_tasks_true _ _ Pairs q j A1 A2) as R. simpl in R.
      pose proof (all_tasks_true _ _ R r l A3 A4) as R'. simpl in R'. apply orb_true_iff in R'.
      destruct R' as [R'|R']; [apply Nat.eqb_eq in R'; contradiction|]. rewrite forallb_forall in R'. apply R', in_seq. lia. }
    assert (N' : qb <> qa) by auto. destruct (le_lt_dec i k) as [Le|Gt].
    + assert (Cl : clash x qa ja i qb jb k = true) by (apply (clash_true x qa ja i qb jb k a b lo hi lo' hi' z); auto).
      destruct (pair_b_sound ord x qa ja qb jb (Pair qa ja qb jb Ha Ja Hb Jb N) i k Le) as [O|(E & O)]; auto; try lia;
        [left|right]; apply live_must; now apply (Means T).
    + assert (Cl : clash x qb jb k qa ja i = true).
      { apply (clash_true x qb jb k qa ja i b a lo' hi' lo hi z); auto; [now rewrite orb_comm|now rewrite andb_comm]. }
      destruct (pair_b_sound ord x qb jb qa ja (Pair qb jb qa ja Hb Jb Ha Ja N') k i) as [O|(E & O)]; auto; try lia.
      right. apply live_must. now apply (Means T).
Qed.

(** *** The theorem *)
Theorem checker_sound : forall C, check C = true -> forall T, T <= steps X ->
  deadlock_free (unroll live_loop T) /\
  forall x, x < assignments X -> race_free (unroll live_loop T) Z (touches false x) (touches true x).
Proof.
  intros C H T HT. unfold Checker.check in H. repeat (apply andb_true_iff in H; destruct H as (H & ?)).
  match goal with R : replay_b _ _ _ _ = true, W : counted_b _ = true |- _ => pose proof (replay_decides W _ _ R T) as Live end.
  split; auto. intros x Hx. destruct (parse C n_all) as [table|]; [|discriminate].
  destruct (Z.eqb (c_unroll C) 0) eqn:E.
  - match goal with R : _ && _ && cells_b _ _ _ = true |- _ => apply andb_true_iff in R; destruct R as (R & Cells);
      apply andb_true_iff in R; destruct R as (Per & Pairs) end.
    apply (conflicts_ordered (ord_p table) true) with (2 := fun _ => ord_p_shift table) (4 := Cells); auto. now apply ord_p_sound.
  - match goal with R : _ && _ && cells_b _ _ _ = true |- _ => apply andb_true_iff in R; destruct R as (R & Cells);
      apply andb_true_iff in R; destruct R as (Unr & Pairs) end.
    match goal with R : false || _ = true |- _ => simpl in R; apply andb_true_iff in R; destruct R as (Long & _);
      apply Z.leb_le in Long end.
    apply (conflicts_ordered (ord_u table n_all) false) with (4 := Cells); auto; [|discriminate].
    apply (ord_u_sound table n_all (Z.to_nat (c_unroll C))); auto. lia.
Qed.
(** What an accepted schedule computes: whatever the bodies do inside their declared bytes of plain buffers, all runs that come to
    an end have read the same values and have the same memory: those of running the tasks one after the other in replay order. *)
Theorem checked_is_deterministic : forall C, check C = true -> forall T x, T <= steps X -> x < assignments X ->
  forall (val local : Type) (act : local -> action Z val local) (entry : nat -> nat -> local) (mem0 : Z -> val),
  (forall q m l, visits Z val local act entry q m l ->
     match act l with Read _ _ _ z _ => touches false x q m z | Write _ _ _ z _ _ => touches true x q m z | Done _ _ _ => True
       end) ->
  let run := Confluence.run (machine Z val local) (same Z val local) (step (unroll live_loop T) Z val local Z.eq_dec act entry) in
  let initial := initial Z val local mem0 in
  let final := Confluence.final (machine Z val local) (step (unroll live_loop T) Z val local Z.eq_dec act entry) in
  forall n m y z, run n initial y -> final y -> run m initial z -> final z ->
    n = m /\ (forall a, mem Z val local y a = mem Z val local z a) /\ (forall q, seen Z val local y q = seen Z val local z q).
Proof.
  intros C H T x HT Hx val local act entry mem0 Conf run0 initial0 final0 n m y z Ry Fy Rz Fz.
  destruct (checker_sound C H T HT) as (_ & Free).
  exact (deterministic (unroll live_loop T) Z val local Z.eq_dec act entry (touches false x) (touches true x) Conf (Free x Hx)
    mem0 n m y z Ry Fy Rz Fz).
Qed.
End Soundness.
