(** Completeness of periodic clocks: what is ordered in loops of every length is certified by a periodic table.

    The exact periodic clock of a task is the least lead [s r - i * L_r] of queue [r] over all steps [i] and all reachable states
    in which the task may start, or minus infinity.  Because a loop whose step can complete may always be run one more step
    first ([reach_later]), a lead that occurs once occurs in all later steps; so in late steps all exact clocks hold at once,
    and if no rule certified an entry, one reachable state with a smaller lead could be joined together.

    Which leads are minus infinity is not computable by this argument, so the existence of the exact table is stated under a
    double negation; the theorems about a given table need none.  No axiom is used. *)

From Coq Require Import Arith ZArith Lia List Bool.
From AMK Require Import Sums Semantics MustOrder Loop OneStep Periodic.
Import ListNotations.
Local Open Scope Z_scope.

(** *** Finite choice under double negation *)
Lemma nn_choice : forall (X : Type) (d : X) n (A : nat -> X -> Prop),
  (forall k, (k < n)%nat -> ~ ~ exists x, A k x) -> ~ ~ exists f, forall k, (k < n)%nat -> A k (f k).
Proof.
  intros X d n A. induction n as [|n IH]; intros H N.
  - apply N. exists (fun _ => d). intros; lia.
  - apply IH; [intros; apply H; lia|]. intros (f & F). apply (H n); [lia|]. intros (x & Ax).
    apply N. exists (fun k => if Nat.eqb k n then x else f k). intros k Hk.
    destruct (Nat.eqb k n) eqn:E; [apply Nat.eqb_eq in E; now subst|]. apply Nat.eqb_neq in E. apply F. lia.
Qed.

Lemma nn_all : forall n (A : nat -> Prop), (forall k, (k < n)%nat -> ~ ~ A k) -> ~ ~ forall k, (k < n)%nat -> A k.
Proof.
  intros n A H N. apply (nn_choice unit tt n (fun k _ => A k)).
  - intros k Hk M. apply (H k Hk). intro a. apply M. now exists tt.
  - intros (_ & F). now apply N.
Qed.

(** What holds from some step on. *)
Definition eventually (A : nat -> Prop) := exists i0, forall i, (i0 <= i)%nat -> A i.

Lemma eventually_and : forall A C, eventually A -> eventually C -> eventually (fun i => A i /\ C i).
Proof. intros A C (a & HA) (c & HC). exists (a + c)%nat. intros i Hi. split; [apply HA|apply HC]; lia. Qed.

Lemma eventually_all : forall n (A : nat -> nat -> Prop),
  (forall k, (k < n)%nat -> eventually (A k)) -> eventually (fun i => forall k, (k < n)%nat -> A k i).
Proof.
  induction n as [|n IH]; intros A H.
  - exists O. intros; lia.
  - destruct (IH A) as (a & HA); [intros; apply H; lia|]. destruct (H n) as (c & HC); [lia|].
    exists (a + c)%nat. intros i Hi k Hk. destruct (Nat.eq_dec k n) as [->|]; [apply HC|apply HA]; lia.
Qed.

(** *** Decidable bounded questions *)
Lemma search : forall n (A : nat -> Prop), (forall k, {A k} + {~ A k}) ->
  {k | (k < n)%nat /\ A k} + {forall k, (k < n)%nat -> ~ A k}.
Proof.
  intros n A dec. induction n as [|n [(k & Hk & a)|IH]].
  - right. intros; lia.
  - left. exists k. split; [lia|auto].
  - destruct (dec n) as [a|na].
    + left. exists n. split; [lia|auto].
    + right. intros k Hk. destruct (Nat.eq_dec k n) as [->|]; auto. apply IH. lia.
Qed.

Lemma search_list : forall (X : Type) (l : list X) (A : X -> Prop), (forall x, {A x} + {~ A x}) ->
  {x | In x l /\ A x} + {forall x, In x l -> ~ A x}.
Proof.
  intros X l A dec. induction l as [|y l [(x & I & a)|IH]].
  - right. intros x [].
  - left. exists x. split; [right|]; auto.
  - destruct (dec y) as [a|na].
    + left. exists y. split; [left|]; auto.
    + right. intros x [<-|I]; auto.
Qed.

Section Complete.
Variable B : loop.
Notation Q := (lqueues B).
Notation L := (per_step B).
Notation lz := (lz B).
Notation weight := (weight B).
Notation plus := (plus).
Hypothesis W : counted B.
Hypothesis Live : deadlock_free (unroll B 1).

Lemma one_step_completes : reach (unroll B 1) (later B 1 start).
Proof.
  destruct (greedy_run (unroll B 1)) as (g & R & T). apply reach_eq with (s := g); auto.
  apply complete_is_later; auto.
Qed.

Lemma reachable_later : forall k T s, reach (unroll B T) s -> reach (unroll B (k + T)) (later B k s).
Proof. intros. apply reach_later; auto. apply one_step_completes. Qed.

(** *** Leads *)
(** In some step [i], task [j] of queue [q] may start while queue [r] is at [i * L_r + x]. *)
Definition lead_at (i q j r : nat) (x : Z) := exists T s,
  reach (unroll B T) s /\ enabled (unroll B T) s q /\ s q = (i * L q + j)%nat /\ Z.of_nat (s r) = Z.of_nat i * lz r + x.
Definition lead (q j r : nat) (x : Z) := exists i, lead_at i q j r x.

(** The exact periodic clocks. *)
Definition exact_entry (q j r : nat) (o : option Z) := match o with
  | Some x => lead q j r x /\ forall y, lead q j r y -> x <= y
  | None => forall m, ~ forall y, lead q j r y -> m <= y
  end.
Definition exact (v : nat -> nat -> nat -> option Z) := forall q j r,
  (q < Q)%nat -> (j < L q)%nat -> (r < Q)%nat -> exact_entry q j r (v q j r).

Lemma lead_in_first_step : forall q j r, (q < Q)%nat -> (j < L q)%nat -> (r < Q)%nat -> exists x, lead q j r x /\ x <= lz r.
Proof.
  intros q j r Hq Hj Hr. pose proof one_step_completes as R.
  destruct (passed _ _ R q j) as (s & Rs & Es & Hs & Bs).
  - unfold later, start. apply Nat.ltb_lt in Hq. rewrite Hq. lia.
  - exists (Z.of_nat (s r)). split.
    + exists O, 1%nat, s. split; [|split; [|split]]; auto; lia.
    + pose proof (Bs r) as H. unfold later, start in H. assert (Hr' := Hr). apply Nat.ltb_lt in Hr'. rewrite Hr' in H.
      unfold Periodic.lz. lia.
Qed.

Lemma exact_entry_nn : forall q j r, (q < Q)%nat -> (j < L q)%nat -> (r < Q)%nat -> ~ ~ exists o, exact_entry q j r o.
Proof.
  intros q j r Hq Hj Hr N. destruct (lead_in_first_step q j r Hq Hj Hr) as (y0 & Y0 & _).
  assert (Down : forall n : nat, ~ forall y, lead q j r y -> y0 - Z.of_nat n < y).
  { induction n as [|n IH]; intro A.
    - pose proof (A y0 Y0). lia.
    - apply IH. intros y Y. destruct (Z_lt_le_dec (y0 - Z.of_nat n) y) as [|Le]; auto. exfalso.
      apply N. exists (Some y). split; auto. intros y' Y'. pose proof (A y Y). pose proof (A y' Y'). lia. }
  apply N. exists None. intros m A. apply (Down (Z.to_nat (y0 - m + 1))). intros y Y. pose proof (A y Y). lia.
Qed.

Theorem exact_periodic_clocks_exist : ~ ~ exists v, exact v.
Proof.
  intro N. apply (nn_choice (nat -> nat -> option Z) (fun _ _ => None) Q
    (fun q f => forall j, (j < L q)%nat -> forall r, (r < Q)%nat -> exact_entry q j r (f j r))).
  - intros q Hq. apply (nn_choice (nat -> option Z) (fun _ => None) (L q)
      (fun j f => forall r, (r < Q)%nat -> exact_entry q j r (f r))).
    intros j Hj. apply (nn_choice (option Z) None Q (fun r o => exact_entry q j r o)).
    intros r Hr. now apply exact_entry_nn.
  - intros (f & F). apply N. exists f. intros q j r Hq Hj Hr. now apply F.
Qed.

Section Table.
Variable v : nat -> nat -> nat -> option Z.
Hypothesis Ex : exact v.

(** A task's own queue leads by its position. *)
Lemma own_lead : forall q j x, lead q j q x -> x = Z.of_nat j.
Proof. intros q j x (i & T & s & _ & _ & E & Ls). rewrite E in Ls. unfold Periodic.lz in *. nia. Qed.

Lemma own_clock : forall q j, (q < Q)%nat -> (j < L q)%nat -> v q j q = Some (Z.of_nat j).
Proof.
  intros q j Hq Hj. pose proof (Ex q j q Hq Hj Hq) as E. destruct (v q j q) as [x|].
  - destruct E as (Lx & _). now rewrite (own_lead q j x Lx).
  - exfalso. apply (E (Z.of_nat j)). intros y Y. rewrite (own_lead q j y Y). lia.
Qed.

Lemma plus_own : forall q j, (q < Q)%nat -> (j < L q)%nat -> plus v q j q = Some (Z.of_nat j + 1).
Proof. intros q j Hq Hj. unfold Periodic.plus. rewrite Nat.eqb_refl, own_clock by auto. f_equal. lia. Qed.

Lemma plus_other : forall q j r, r <> q -> plus v q j r = v q j r.
Proof. intros q j r N. unfold Periodic.plus. apply Nat.eqb_neq in N. now rewrite N. Qed.

(** Instance [n] of task [p, k] can be complete while queue [r] is below [i * L_r + x]. *)
Definition can (r : nat) (x : Z) (p k : nat) (n : Z) (i : nat) := exists T u, reach (unroll B T) u /\
  Z.of_nat (u r) < Z.of_nat i * lz r + x /\ (Z.of_nat i + n) * lz p + Z.of_nat k < Z.of_nat (u p).

(** A lead occurs in every later step, and then the task can be completed. *)
Lemma complete_with_lead : forall p k r y d, (p < Q)%nat -> (r < Q)%nat ->
  lead p k r y -> d = y + (if Nat.eqb r p then 1 else 0) ->
  forall x n, n * lz r + d < x -> eventually (can r x p k n).
Proof.
  intros p k r y d Hp Hr (iw & T & s & R & En & E & Ls) Hd x n Lt. exists (iw + Z.to_nat (Z.abs n))%nat. intros i Hi.
  set (m := Z.to_nat (Z.of_nat i + n - Z.of_nat iw)).
  exists (m + T)%nat, (later B m (advance s p)). split; [apply reachable_later; now apply reach_step|].
  unfold later. assert (Hr' := Hr). assert (Hp' := Hp). apply Nat.ltb_lt in Hr', Hp'. rewrite Hr', Hp', advance_same, E.
  assert (M : Z.of_nat m = Z.of_nat i + n - Z.of_nat iw) by lia.
  assert (Z.of_nat (advance s p r) = Z.of_nat iw * lz r + d).
  { unfold advance. destruct (Nat.eqb r p); lia. }
  unfold Periodic.lz in *. rewrite !Nat2Z.inj_add, !Nat2Z.inj_mul. split; [nia|].
  rewrite Nat2Z.inj_succ, Nat2Z.inj_add, Nat2Z.inj_mul. nia.
Qed.

Lemma can_finite : forall p k r y, (p < Q)%nat -> (k < L p)%nat -> (r < Q)%nat -> plus v p k r = Some y ->
  forall x n, n * lz r + y < x -> eventually (can r x p k n).
Proof.
  intros p k r y Hp Hk Hr P x n Lt. destruct (Nat.eq_dec r p) as [->|N].
  - rewrite plus_own in P by auto. injection P as <-. pose proof (Ex p k p Hp Hk Hp) as E.
    rewrite own_clock in E by auto. destruct E as (Ld & _).
    apply complete_with_lead with (y := Z.of_nat k) (d := Z.of_nat k + 1); auto. now rewrite Nat.eqb_refl.
  - rewrite plus_other in P by auto. pose proof (Ex p k r Hp Hk Hr) as E. rewrite P in E. destruct E as (Ld & _).
    apply complete_with_lead with (y := y) (d := y); auto. apply Nat.eqb_neq in N. rewrite N. lia.
Qed.

Lemma can_infinite : forall p k r, (p < Q)%nat -> (k < L p)%nat -> (r < Q)%nat -> plus v p k r = None ->
  forall x n, ~ ~ eventually (can r x p k n).
Proof.
  intros p k r Hp Hk Hr P x n N. assert (Np : r <> p) by (intros ->; rewrite plus_own in P by auto; discriminate).
  rewrite plus_other in P by auto. pose proof (Ex p k r Hp Hk Hr) as E. rewrite P in E.
  apply (E (x - n * lz r)). intros y Y. destruct (Z_le_gt_dec (x - n * lz r) y) as [|Gt]; auto. exfalso. apply N.
  apply complete_with_lead with (y := y) (d := y); auto; [|lia]. apply Nat.eqb_neq in Np. rewrite Np. lia.
Qed.

(** The instances that can be complete: exact for a finite clock, as many as wanted ([m]) for minus infinity. *)
Definition reached (m : Z) (p k r : nat) (x : Z) : Z := match plus v p k r with Some y => cdiv (x - y) (lz r) | None => m end.

Lemma can_reached : forall m p k r x, (p < Q)%nat -> (k < L p)%nat -> (r < Q)%nat -> (0 < L r)%nat ->
  ~ ~ eventually (can r x p k (reached m p k r x - 1)).
Proof.
  intros m p k r x Hp Hk Hr Lr. unfold reached. destruct (plus v p k r) as [y|] eqn:P.
  - intro N. apply N. apply can_finite with (y := y); auto.
    assert (0 < lz r) by (unfold Periodic.lz; lia). pose proof (cdiv_below (x - y) (lz r)). lia.
  - now apply can_infinite.
Qed.

(** *** One state for all of them *)
Definition all_reached (m : Z) (r : nat) (x : Z) (i : nat) (J : state) := forall p k, (p < Q)%nat -> (k < L p)%nat ->
  (Z.of_nat i + (reached m p k r x - 1)) * lz p + Z.of_nat k < Z.of_nat (J p).

Lemma join_up : forall T U s u, reach (unroll B T) s -> reach (unroll B U) u -> reach (unroll B (T + U)) (join s u).
Proof.
  intros T U s u R S. apply join_closed; apply unroll_reach_longer with (2 := R) || apply unroll_reach_longer with (2 := S); lia.
Qed.

Lemma gather_periodic : forall m r x, (r < Q)%nat -> (0 < L r)%nat -> ~ ~ eventually (fun i =>
  exists T J, reach (unroll B T) J /\ Z.of_nat (J r) < Z.of_nat i * lz r + x /\ all_reached m r x i J).
Proof.
  intros m r x Hr Lr N.
  assert (A : ~ ~ forall p, (p < Q)%nat -> forall k, (k < L p)%nat -> eventually (can r x p k (reached m p k r x - 1))).
  { apply nn_all. intros p Hp. apply nn_all. intros k Hk. now apply can_reached. }
  apply A. clear A. intro A. apply N. clear N.
  assert (E : eventually (fun i => forall p, (p < Q)%nat -> forall k, (k < L p)%nat -> can r x p k (reached m p k r x - 1) i)).
  { apply eventually_all. intros p Hp. apply eventually_all. intros k Hk. now apply A. }
  assert (E0 : eventually (fun i => 0 < Z.of_nat i * lz r + x)).
  { exists (Z.to_nat (Z.abs x + 1)). intros i Hi. unfold Periodic.lz. nia. }
  destruct (eventually_and _ _ E E0) as (i0 & H). exists i0. intros i Hi. destruct (H i Hi) as (C & Pos). clear - C Pos.
  assert (Row : forall p, (p < Q)%nat -> forall l, (l <= L p)%nat -> exists T J, reach (unroll B T) J /\
    Z.of_nat (J r) < Z.of_nat i * lz r + x /\
    forall k, (k < l)%nat -> (Z.of_nat i + (reached m p k r x - 1)) * lz p + Z.of_nat k < Z.of_nat (J p)).
  { intros p Hp. induction l as [|l IH]; intro Hl.
    - exists O, start. split; [constructor|]. split; [unfold start; lia|intros; lia].
    - destruct IH as (T & J & RJ & Jr & HJ); [lia|]. destruct (C p Hp l) as (U & u & Ru & Ur & Hu); [lia|].
      exists (T + U)%nat, (join J u). split; [now apply join_up|]. unfold join. split; [lia|].
      intros k Hk. destruct (Nat.eq_dec k l) as [->|]; [lia|]. specialize (HJ k). lia. }
  assert (All : forall n, (n <= Q)%nat -> exists T J, reach (unroll B T) J /\ Z.of_nat (J r) < Z.of_nat i * lz r + x /\
    forall p k, (p < n)%nat -> (k < L p)%nat -> (Z.of_nat i + (reached m p k r x - 1)) * lz p + Z.of_nat k < Z.of_nat (J p)).
  { induction n as [|n IH]; intro Hn.
    - exists O, start. split; [constructor|]. split; [unfold start; lia|intros; lia].
    - destruct IH as (T & J & RJ & Jr & HJ); [lia|]. destruct (Row n) with (l := L n) as (U & u & Ru & Ur & Hu); auto.
      exists (T + U)%nat, (join J u). split; [now apply join_up|]. unfold join. split; [lia|].
      intros p k Hp Hk. destruct (Nat.eq_dec p n) as [->|]; [specialize (Hu k Hk); lia|].
      assert (p < n)%nat by lia. specialize (HJ p k). lia. }
  destruct (All Q) as (T & J & RJ & Jr & HJ); auto. exists T, J. auto.
Qed.

(** *** Waits that certify nothing are satisfied in it. *)
Lemma covers_dec : forall q j r x w, {wait_covers B v q j r x w} + {~ wait_covers B v q j r x w}.
Proof.
  intros q j r x ((c, t), e). unfold wait_covers.
  destruct (search Q (fun p => exists k, (k < L p)%nat /\ weight p k c <> 0 /\ plus v p k r = None)) as [(p & Hp & Ev)|No].
  - intro p. destruct (search (L p) (fun k => weight p k c <> 0 /\ plus v p k r = None)) as [(k & Hk & a)|No].
    + intro k. destruct (Z.eq_dec (weight p k c) 0); [right; tauto|].
      destruct (plus v p k r); [right; intros (_ & D); discriminate|left; auto].
    + left. exists k. tauto.
    + right. intros (k & Hk & a). now apply (No k).
  - right. intros (NN & _). destruct Ev as (k & Hk & Wk & Pk). now apply (NN p k).
  - destruct (Z_lt_le_dec (over_tasks B (fun p k => weight p k c * early B v p k r x))
                          (shift_of e * ztotal B c + Z.of_nat t)) as [Lt|Ge].
    + left. split; auto. intros p k Hp Hk Wk Pk. apply (No p Hp). exists k. auto.
    + right. intros (_ & Lt). lia.
Qed.

Lemma over_tasks_le : forall f g, (forall p k, (p < Q)%nat -> (k < L p)%nat -> f p k <= g p k) -> over_tasks B f <= over_tasks B g.
Proof. intros f g H. apply zsum_le. intros p Hp. apply zsum_le. intros k Hk. auto. Qed.

Lemma over_tasks_add : forall f g, over_tasks B (fun p k => f p k + g p k) = over_tasks B f + over_tasks B g.
Proof.
  intros f g. unfold over_tasks. rewrite <- zsum_add.
    apply Z.le_antisymm; apply zsum_le; intros p _; rewrite zsum_add; apply Z.le_refl.
Qed.

Lemma over_tasks_scale : forall a f, over_tasks B (fun p k => a * f p k) = a * over_tasks B f.
Proof.
  intros a f. unfold over_tasks. rewrite <- zsum_scale.
    apply Z.le_antisymm; apply zsum_le; intros p _; rewrite zsum_scale; apply Z.le_refl.
Qed.

Lemma zsum_nonneg_at : forall n f k, (forall i, (i < n)%nat -> 0 <= f i) -> (k < n)%nat -> f k <= zsum n f.
Proof.
  induction n as [|n IH]; intros f k H Hk; [lia|]. simpl. assert (0 <= f n) by (apply H; lia).
  assert (0 <= zsum n f).
  { clear - H. induction n as [|n IHn]; simpl; [lia|]. assert (0 <= f n) by (apply H; lia).
    assert (0 <= zsum n f) by (apply IHn; intros; apply H; lia). lia. }
  destruct (Nat.eq_dec k n) as [->|]; [lia|]. assert (f k <= zsum n f) by (apply IH; [intros; apply H|]; lia). lia.
Qed.

Lemma over_tasks_at : forall f p k, (forall p k, (p < Q)%nat -> (k < L p)%nat -> 0 <= f p k) -> (p < Q)%nat -> (k < L p)%nat ->
  f p k <= over_tasks B f.
Proof.
  intros f p k H Hp Hk. apply Z.le_trans with (zsum (L p) (fun k => f p k)).
  - apply (zsum_nonneg_at (L p) (fun k => f p k)); auto.
  - apply (zsum_nonneg_at Q (fun p => zsum (L p) (fun k => f p k))); auto. intros i Hi.
    assert (Z0 : forall n, (n <= L i)%nat -> 0 <= zsum n (fun k => f i k)); [|auto].
    induction n as [|n IH]; simpl; intro Hn; [lia|]. assert (0 <= f i n) by (apply H; auto; lia). lia.
Qed.

(** A wait that does not certify [x] holds once enough instances are complete. *)
Lemma uncovering_wait : forall q j r x c t e, ~ wait_covers B v q j r x (c, t, e) ->
  exists m0, forall m, m0 <= m ->
    shift_of e * ztotal B c + Z.of_nat t <= over_tasks B (fun p k => weight p k c * reached m p k r x).
Proof.
  intros q j r x c t e N.
  destruct (search Q (fun p => exists k, (k < L p)%nat /\ weight p k c <> 0 /\ plus v p k r = None)) as [(p & Hp & Ev)|No].
  - intro p. destruct (search (L p) (fun k => weight p k c <> 0 /\ plus v p k r = None)) as [(k & Hk & a)|No].
    + intro k. destruct (Z.eq_dec (weight p k c) 0); [right; tauto|].
      destruct (plus v p k r); [right; intros (_ & D); discriminate|left; auto].
    + left. exists k. tauto.
    + right. intros (k & Hk & a). now apply (No k).
  - (* a signalling task may run ahead without bound: its instances alone reach the threshold *)
    destruct Ev as (k & Hk & Wk & Pk).
    set (fixed := over_tasks B (fun p k => weight p k c * reached 0 p k r x)).
    set (need := shift_of e * ztotal B c + Z.of_nat t - fixed).
    exists (Z.abs need). intros m Hm.
    assert (Step : over_tasks B (fun p k => weight p k c * reached 0 p k r x + weight p k c * (reached m p k r x - reached 0 p k r
      x))
                   <= over_tasks B (fun p k => weight p k c * reached m p k r x)).
    { apply over_tasks_le. intros. nia. }
    rewrite over_tasks_add in Step. fold fixed in Step.
    assert (m <= over_tasks B (fun p k => weight p k c * (reached m p k r x - reached 0 p k r x))); [|unfold need in *; lia].
    apply Z.le_trans with (weight p k c * (reached m p k r x - reached 0 p k r x)).
    + unfold reached. rewrite Pk. assert (0 <= weight p k c) by (unfold Periodic.weight; lia). nia.
    + apply (over_tasks_at (fun p k => weight p k c * (reached m p k r x - reached 0 p k r x))); auto.
      intros p' k' _ _. unfold reached. assert (0 <= weight p' k' c) by (unfold Periodic.weight; lia).
      destruct (plus v p' k' r); nia.
  - exists 0. intros m _.
    destruct (Z_lt_le_dec (over_tasks B (fun p k => weight p k c * early B v p k r x))
                          (shift_of e * ztotal B c + Z.of_nat t)) as [Lt|Ge].
    + exfalso. apply N. split; auto. intros p k Hp Hk Wk Pk. apply (No p Hp). exists k. auto.
    + apply Z.le_trans with (1 := Ge). apply over_tasks_le. intros p k Hp Hk. unfold early, reached.
      destruct (plus v p k r) eqn:P; [lia|]. destruct (Z.eq_dec (weight p k c) 0) as [->|Wk]; [lia|].
      exfalso. apply (No p Hp). exists k. auto.
Qed.

Lemma uncovering_waits : forall q j r x l, (forall w, In w l -> ~ wait_covers B v q j r x w) ->
  exists m0, forall m c t e, m0 <= m -> In (c, t, e) l ->
    shift_of e * ztotal B c + Z.of_nat t <= over_tasks B (fun p k => weight p k c * reached m p k r x).
Proof.
  intros q j r x l. induction l as [|((c, t), e) l IH]; intro H.
  - exists 0. intros m c t e _ [].
  - destruct IH as (m1 & H1); [intros; apply H; now right|].
    destruct (uncovering_wait q j r x c t e) as (m2 & H2); [apply H; now left|].
    exists (Z.max m1 m2). intros m c' t' e' Hm [Eq|I].
    + injection Eq as <- <- <-. apply H2. lia.
    + apply H1; auto. lia.
Qed.

Lemma times_at_least : forall q m j n, (j < L q)%nat -> (n - 1) * lz q + Z.of_nat j < Z.of_nat m -> n <= Z.of_nat (times B q m j).
Proof. intros q m j n Hj H. pose proof (times_reached B q m j (n - 1) Hj H). lia. Qed.

(** The predecessor of a task, at the same or the previous step, is below [x]. *)
Lemma no_rule_means : forall q j r x, (q < Q)%nat -> (j < L q)%nat -> (r < Q)%nat -> (0 < L r)%nat ->
  ~ (exists y, (0 < j)%nat /\ plus v q (j - 1) r = Some y /\ x <= y) ->
  ~ (exists y, j = O /\ plus v q (L q - 1) r = Some y /\ x <= y - lz r) ->
  forall m i J, 1 <= m -> (0 < i)%nat -> all_reached m r x i J -> (i * L q + j <= J q)%nat.
Proof.
  intros q j r x Hq Hj Hr Lr N1 N2 m i J Hm Hi A. assert (Lz : 0 < lz r) by (unfold Periodic.lz; lia).
  destruct (Nat.eq_dec j 0) as [->|Nz].
  - pose proof (A q (L q - 1)%nat Hq) as H. assert (D : 0 <= reached m q (L q - 1) r x).
    { unfold reached. destruct (plus v q (L q - 1) r) as [y|] eqn:P; [|lia].
      assert (-1 < cdiv (x - y) (lz r)); [|lia]. apply cdiv_gt; auto.
      destruct (Z_le_gt_dec x (y - lz r)) as [Le|]; [|lia]. exfalso. apply N2. exists y. auto. }
    assert (H' : (Z.of_nat i + (reached m q (L q - 1) r x - 1)) * lz q + Z.of_nat (L q - 1) < Z.of_nat (J q)) by (apply H; lia).
    unfold Periodic.lz in *. nia.
  - pose proof (A q (j - 1)%nat Hq) as H. assert (D : 1 <= reached m q (j - 1) r x).
    { unfold reached. destruct (plus v q (j - 1) r) as [y|] eqn:P; [|lia].
      assert (0 < cdiv (x - y) (lz r)); [|lia]. apply cdiv_gt; auto.
      destruct (Z_le_gt_dec x y) as [Le|]; [|lia]. exfalso. apply N1. exists y. split; [lia|auto]. }
    assert (H' : (Z.of_nat i + (reached m q (j - 1) r x - 1)) * lz q + Z.of_nat (j - 1) < Z.of_nat (J q)) by (apply H; lia).
    unfold Periodic.lz in *. nia.
Qed.

(** *** The exact clocks pass the local check. *)
Theorem periodic_complete : periodic_ok B v.
Proof.
  intros q j r Hq Hj Hr Lr. assert (Lz : 0 < lz r) by (unfold Periodic.lz; lia). split.
  - intros y P. destruct (Nat.eq_dec r q) as [->|N].
    + rewrite plus_own in P by auto. injection P as <-. unfold Periodic.lz. lia.
    + rewrite plus_other in P by auto. pose proof (Ex q j r Hq Hj Hr) as E. rewrite P in E. destruct E as (_ & Least).
      destruct (lead_in_first_step q j r Hq Hj Hr) as (x & Lx & Bx). pose proof (Least x Lx). lia.
  - intros x Hv. unfold periodic_entry_ok.
    assert (D1 : {exists y, (0 < j)%nat /\ plus v q (j - 1) r = Some y /\ x <= y} +
                 {~ exists y, (0 < j)%nat /\ plus v q (j - 1) r = Some y /\ x <= y}).
    { destruct (lt_dec 0 j); [|right; intros (y & A & _); lia].
      destruct (plus v q (j - 1) r) as [y|]; [|right; intros (y & _ & A & _); discriminate].
      destruct (Z_le_gt_dec x y); [left; eauto|right; intros (y' & _ & A & C); injection A as <-; lia]. }
    assert (D2 : {exists y, j = O /\ plus v q (L q - 1) r = Some y /\ x <= y - lz r} +
                 {~ exists y, j = O /\ plus v q (L q - 1) r = Some y /\ x <= y - lz r}).
    { destruct (Nat.eq_dec j 0); [|right; intros (y & A & _); lia].
      destruct (plus v q (L q - 1) r) as [y|]; [|right; intros (y & _ & A & _); discriminate].
      destruct (Z_le_gt_dec x (y - lz r)); [left; eauto|right; intros (y' & _ & A & C); injection A as <-; lia]. }
    destruct D1 as [|N1]; [now left|]. destruct D2 as [|N2]; [right; now left|]. right. right.
    destruct (search_list _ (lwaits B q j) _ (covers_dec q j r x)) as [(w & I & C)|N3]; [now exists w|]. exfalso.
    destruct (uncovering_waits q j r x (lwaits B q j) N3) as (m0 & Enough).
    set (m := Z.max m0 1). pose proof (Ex q j r Hq Hj Hr) as E. rewrite Hv in E. destruct E as (_ & Least).
    apply (gather_periodic m r x Hr Lr). intros (i0 & G). set (i := S i0).
    destruct (G i) as (T & J & RJ & Jr & All); [unfold i; lia|].
    assert (Up : (i * L q + j <= J q)%nat) by (apply (no_rule_means q j r x Hq Hj Hr Lr N1 N2 m i J); auto; unfold m, i; lia).
    assert (Smaller : forall T s, reach (unroll B T) s -> enabled (unroll B T) s q -> s q = (i * L q + j)%nat ->
                      Z.of_nat (s r) < Z.of_nat i * lz r + x -> False).
    { intros T' s Rs Es Hs Lt. pose proof (Least (Z.of_nat (s r) - Z.of_nat i * lz r)) as Le.
      assert (x <= Z.of_nat (s r) - Z.of_nat i * lz r); [|lia]. apply Le. exists i, T', s. split; [|split; [|split]]; auto. lia. }
    destruct (Nat.eq_dec (J q) (i * L q + j)) as [Eq|Ne].
    + apply (Smaller (T + S i)%nat J); auto; [apply unroll_reach_longer with (T := T); auto; lia|].
      destruct (instance_of B q i j Hj) as (Di & Mo). split; [|split]; auto; [simpl; nia|].
      intros c th I. rewrite Eq in I. apply in_unrolled_waits in I. destruct I as (t & e & I & ->). rewrite Di. rewrite Mo in I.
      assert (RJ' : reach (unroll B (T + S i)) J) by (apply unroll_reach_longer with (T := T); auto; lia).
      pose proof (count_by_position B _ J RJ' c) as Cnt.
      assert (Hm : m0 <= m) by (unfold m; lia). pose proof (Enough m c t e Hm I) as En.
      assert (Z.of_nat i * ztotal B c + over_tasks B (fun p k => weight p k c * reached m p k r x) <=
              over_tasks B (fun p k => weight p k c * Z.of_nat (times B p (J p) k))) as Sum.
      { unfold ztotal. rewrite <- over_tasks_scale, <- over_tasks_add. apply over_tasks_le. intros p k Hp Hk.
        pose proof (All p k Hp Hk) as A.
        assert (Z.of_nat i + reached m p k r x <= Z.of_nat (times B p (J p) k)).
        { apply times_at_least; auto. replace (Z.of_nat i + reached m p k r x - 1) with (Z.of_nat i + (reached m p k r x - 1)) by
          lia. auto. }
        assert (0 <= weight p k c) by (unfold Periodic.weight; lia). nia. }
      rewrite <- Cnt in Sum. rewrite ztotal_total in *. unfold threshold, shift_of in *. destruct e; nia.
    + destruct (passed _ J RJ q (i * L q + j)%nat) as (s & Rs & Es & Hs & Bs); [lia|].
      apply (Smaller T s); auto. pose proof (Bs r). lia.
Qed.

(** *** and they cover every order that holds in loops of every length. *)
Theorem exact_covers : forall qa ja qb jb k, (qa < Q)%nat -> (qb < Q)%nat -> (jb < L qb)%nat -> (0 < L qa)%nat ->
  loop_must B qa ja qb jb k -> covers v qb jb qa (Z.of_nat ja + 1 - Z.of_nat k * lz qa) \/ v qb jb qa = None.
Proof.
  intros qa ja qb jb k Ha Hb Jb La M. pose proof (Ex qb jb qa Hb Jb Ha) as E.
  destruct (v qb jb qa) as [x|] eqn:Hv; [left|now right]. exists x. split; auto.
  destruct E as ((i & T & s & R & En & Es & Ls) & _).
  (* see the state k steps later, so that step i + k - k exists *)
  pose proof (reachable_later k T s R) as R'. pose proof (enabled_later B W T k s qb En) as En'.
  assert (Eq : later B k s qb = ((i + k) * L qb + jb)%nat).
  { unfold later. assert (Hb' := Hb). apply Nat.ltb_lt in Hb'. rewrite Hb', Es. lia. }
  pose proof (M (k + T)%nat i (later B k s) R' En' Eq) as Lt.
  unfold later in Lt. assert (Ha' := Ha). apply Nat.ltb_lt in Ha'. rewrite Ha' in Lt. unfold Periodic.lz in *. nia.
Qed.

Theorem exact_none_not_ordered : forall qa ja qb jb k, (qa < Q)%nat -> (qb < Q)%nat -> (jb < L qb)%nat -> (0 < L qa)%nat ->
  v qb jb qa = None -> ~ loop_must B qa ja qb jb k.
Proof.
  intros qa ja qb jb k Ha Hb Jb La Hv M. pose proof (Ex qb jb qa Hb Jb Ha) as E. rewrite Hv in E.
  apply (E (Z.of_nat ja + 1 - Z.of_nat k * lz qa)). intros y (i & T & s & R & En & Es & Ls).
  pose proof (reachable_later k T s R) as R'. pose proof (enabled_later B W T k s qb En) as En'.
  assert (Eq : later B k s qb = ((i + k) * L qb + jb)%nat).
  { unfold later. assert (Hb' := Hb). apply Nat.ltb_lt in Hb'. rewrite Hb', Es. lia. }
  pose proof (M (k + T)%nat i (later B k s) R' En' Eq) as Lt.
  unfold later in Lt. assert (Ha' := Ha). apply Nat.ltb_lt in Ha'. rewrite Ha' in Lt. unfold Periodic.lz in *. nia.
Qed.
End Table.

(** The rules are monotone: what a smaller valid table certifies, a larger table certifies.  So a search that starts above every
    valid table and lowers an entry only past values that its table does not certify never falls below a valid table; where it
    stops, it stops at the greatest one. *)
Theorem lowering_is_safe : forall u w, periodic_ok B w ->
  (forall q j r x, (q < Q)%nat -> (j < L q)%nat -> plus w q j r = Some x -> exists y, plus u q j r = Some y /\ x <= y) ->
  forall q j r x, (q < Q)%nat -> (j < L q)%nat -> (r < Q)%nat -> (0 < L r)%nat -> w q j r = Some x -> periodic_entry_ok B u q j r x.
Proof.
  intros u w Ok Above q j r x Hq Hj Hr Lr Hw. destruct (Ok q j r Hq Hj Hr Lr) as (_ & C).
  assert (Lz : 0 < lz r) by (unfold Periodic.lz; lia).
  destruct (C x Hw) as [(y & J & P & X)|[(y & J & P & X)|(((c, t), e) & I & NN & Low)]].
  - left. destruct (Above q (j - 1)%nat r y Hq) as (y' & P' & Le); auto; [lia|]. exists y'. split; [|split]; auto. lia.
  - right. left. destruct (Above q (L q - 1)%nat r y Hq) as (y' & P' & Le); auto; [lia|]. exists y'. split; [|split]; auto. lia.
  - right. right. exists (c, t, e). split; auto. split.
    + intros p k Hp Hk Wk Pu. destruct (plus w p k r) as [y|] eqn:Pw; [|now apply (NN p k)].
      destruct (Above p k r y Hp Hk Pw) as (y' & P' & _). congruence.
    + apply Z.le_lt_trans with (2 := Low). apply zsum_le. intros p Hp. apply zsum_le. intros k Hk.
      assert (W0 : 0 <= weight p k c) by (unfold Periodic.weight; lia).
      destruct (Z.eq_dec (weight p k c) 0) as [->|Wk]; [lia|]. apply Z.mul_le_mono_nonneg_l; auto.
      unfold early. destruct (plus w p k r) as [y|] eqn:Pw; [|exfalso; now apply (NN p k)].
      destruct (Above p k r y Hp Hk Pw) as (y' & -> & Le). unfold cdiv.
      assert (- (x - y) / lz r <= - (x - y') / lz r) by (apply Z.div_le_mono; lia). lia.
Qed.

(** *** Completeness, for a given table: the greatest one that passes the check covers all that holds for every T. *)
Definition greatest (v : nat -> nat -> nat -> option Z) := periodic_ok B v /\
  forall u, periodic_ok B u -> forall q j r x, (q < Q)%nat -> (j < L q)%nat -> (r < Q)%nat -> (0 < L r)%nat -> r <> q ->
    u q j r = Some x -> covers v q j r x.

Theorem exact_is_greatest : forall v, exact v -> greatest v.
Proof.
  intros v Ex. split; [now apply periodic_complete|]. intros u Ok q j r x Hq Hj Hr Lr N Hu.
  pose proof (Ex q j r Hq Hj Hr) as E. destruct (v q j r) as [y|] eqn:Hv.
  - exists y. split; auto. destruct E as ((i & T & s & R & En & Es & Ls) & _).
    assert (Z.of_nat i * lz r + x <= Z.of_nat (s r)); [|lia].
    apply (periodic_clocks_sound B u Ok T s q i j r x); auto.
  - exfalso. apply (E x). intros y (i & T & s & R & En & Es & Ls).
    assert (Z.of_nat i * lz r + x <= Z.of_nat (s r)); [|lia].
    apply (periodic_clocks_sound B u Ok T s q i j r x); auto.
Qed.

Lemma covers_dec' : forall v q j r y, {covers v q j r y} + {~ covers v q j r y}.
Proof.
  intros v q j r y. unfold covers. destruct (v q j r) as [x|].
  - destruct (Z_le_gt_dec y x); [left; eauto|right; intros (x' & E & Le); injection E as <-; lia].
  - right. intros (x & E & _). discriminate.
Qed.

Theorem greatest_is_complete : forall v, greatest v -> forall qa ja qb jb k,
  (qa < Q)%nat -> (ja < L qa)%nat -> (qb < Q)%nat -> (jb < L qb)%nat -> qa <> qb ->
  (loop_must B qa ja qb jb k <-> covers v qb jb qa (Z.of_nat ja + 1 - Z.of_nat k * lz qa)).
Proof.
  intros v (Ok & G) qa ja qb jb k Ha Ja Hb Jb N. assert (La : (0 < L qa)%nat) by lia. split; [|now apply periodic_sound].
  intro M. destruct (covers_dec' v qb jb qa (Z.of_nat ja + 1 - Z.of_nat k * lz qa)) as [|Not]; auto. exfalso.
  apply exact_periodic_clocks_exist. intros (u & Eu).
  destruct (exact_covers u Eu qa ja qb jb k Ha Hb Jb La M) as [(x & Hu & Le)|None'].
  - destruct (G u (periodic_complete u Eu) qb jb qa x Hb Jb Ha La N Hu) as (y & Hv & Le'). apply Not. exists y. split; auto. lia.
  - now apply (exact_none_not_ordered u Eu qa ja qb jb k Ha Hb Jb La None').
Qed.
End Complete.
