(** Exact clocks exist, for every schedule.  So must-order is decidable, a race is exactly a missing must-order, and
    every must-order has a certificate.

    The tool is withholding: the greedy run of a schedule whose queues are cut short is the largest reachable state below
    the cut (dominance).  "May this task start before queue r has completed v tasks?" is therefore one greedy run, and no
    set of states has to be enumerated. *)

From Coq Require Import Arith Lia List Bool.
From AMK Require Import Sums Semantics MustOrder.
Import ListNotations.

Section Exact.
Variable P : schedule.
Notation reach := (reach P).
Notation enabled := (enabled P).
Notation count := (count P).

(** *** Withholding *)
Definition withhold (m : state) : schedule :=
  Schedule (queues P) (fun q => Nat.min (len P q) (m q)) (waits P) (signal P).

Lemma withhold_enabled : forall m s q,
  Semantics.enabled (withhold m) s q <-> enabled s q /\ s q < m q.
Proof.
  intros m s q. split.
  - intros (A & B & C). simpl in *. repeat split; auto; lia.
  - intros ((A & B & C) & D). split; [|split]; simpl in *; auto. lia.
Qed.

Lemma withhold_reach : forall m s,
  Semantics.reach (withhold m) s <-> reach s /\ forall q, q < queues P -> s q <= m q.
Proof.
  intros m s. split.
  - intro R. split.
    + induction R as [|s u R IH E|s q R IH En]; [constructor|now apply reach_eq with (s := s)|].
      apply reach_step; auto. now apply withhold_enabled in En.
    + intros q Hq. pose proof (reach_len _ s R q Hq) as L. simpl in L. lia.
  - intros (R & B). induction R as [|s u R IH E|s q R IH En]; [constructor| |].
    + apply reach_eq with (s := s); auto. apply IH. intros q Hq. rewrite E. auto.
    + pose proof (below_advance s q) as Adv. apply reach_step.
      * apply IH. intros x Hx. pose proof (B x Hx). pose proof (Adv x). lia.
      * apply withhold_enabled. split; auto. assert (Hq : q < queues P) by apply En.
        pose proof (B q Hq) as Bq. rewrite advance_same in Bq. lia.
Qed.

(** The largest reachable state below [m]. *)
Lemma largest_below : forall m, {g | reach g /\ (forall q, q < queues P -> g q <= m q) /\
  forall s, reach s -> (forall q, q < queues P -> s q <= m q) -> below s g}.
Proof.
  intro m. destruct (greedy_run (withhold m)) as (g & R & T). exists g.
  pose proof (proj1 (withhold_reach m g) R) as (R' & B). split; [|split]; auto.
  intros s Rs Bs. apply (dominance (withhold m)); auto. now apply withhold_reach.
Qed.

(** *** Deciding "may task i of queue q start while queue r has completed at most v tasks". *)
Definition starts_within (q i r v : nat) := exists s, reach s /\ enabled s q /\ s q = i /\ s r <= v.

Definition cut (q i r v : nat) : state :=
  fun x => Nat.min (if Nat.eqb x q then i else len P x) (if Nat.eqb x r then v else len P x).

Lemma below_cut : forall q i r v s, reach s -> s q = i -> s r <= v ->
  forall x, x < queues P -> s x <= cut q i r v x.
Proof.
  intros q i r v s R Hi Hv x Hx. pose proof (reach_len P s R x Hx). unfold cut.
  destruct (Nat.eqb x q) eqn:Eq; destruct (Nat.eqb x r) eqn:Er;
    try apply Nat.eqb_eq in Eq; try apply Nat.eqb_eq in Er; subst; lia.
Qed.

Lemma starts_within_dec : forall q i r v, {starts_within q i r v} + {~ starts_within q i r v}.
Proof.
  intros q i r v. destruct (largest_below (cut q i r v)) as (g & R & B & Max).
  assert (No : ~ (enabled g q /\ g q = i /\ g r <= v) -> ~ starts_within q i r v).
  { intros N (s & Rs & Es & Hi & Hv). apply N.
    pose proof (Max s Rs (below_cut q i r v s Rs Hi Hv)) as Dom.
    assert (Hq : q < queues P) by apply Es.
    assert (g q = i).
    { pose proof (B q Hq) as Bq. unfold cut in Bq. rewrite Nat.eqb_refl in Bq. pose proof (Dom q). lia. }
    split; [|split]; auto.
    - apply enabled_mono with (s := s); auto. lia.
    - destruct (lt_dec r (queues P)) as [Hr|Hr].
      + pose proof (B r Hr) as Br. unfold cut in Br. rewrite Nat.eqb_refl in Br. lia.
      + rewrite (reach_outside P g R r); lia. }
  destruct (enabled_dec P g q) as [E|E]; [|right; apply No; tauto].
  destruct (Nat.eq_dec (g q) i) as [Hi|Hi]; [|right; apply No; tauto].
  destruct (le_dec (g r) v) as [Hv|Hv]; [|right; apply No; tauto].
  left. exists g. auto.
Qed.

(** The least [v] below [n] for which a decidable, upward closed property holds. *)
Lemma least : forall (A : nat -> Prop), (forall v, {A v} + {~ A v}) -> forall n,
  {v | v < n /\ A v /\ forall u, u < v -> ~ A u} + {forall v, v < n -> ~ A v}.
Proof.
  intros A dec n. induction n as [|n [(v & L & H & M)|IH]].
  - right. intros; lia.
  - left. exists v. split; [lia|auto].
  - destruct (dec n) as [H|H].
    + left. exists n. split; [lia|]. split; auto.
    + right. intros v L. destruct (Nat.eq_dec v n) as [->|]; auto. apply IH. lia.
Qed.

(** *** Exact clocks.
    [V q i r] is the least prefix of queue [r] in any reachable state in which the task may start; the clock of a task that can
    never start is beyond every queue's end. *)
Definition exact (V : nat -> nat -> nat -> nat) := forall q i r, q < queues P -> i < len P q ->
  (forall s, reach s -> enabled s q -> s q = i -> V q i r <= s r) /\
  (starts_within q i r (V q i r) \/ (~ may_start P q i /\ V q i r = S (len P r))).

Lemma exact_entry : forall q i r,
  {v | (forall s, reach s -> enabled s q -> s q = i -> v <= s r) /\
       (starts_within q i r v \/ (~ may_start P q i /\ v = S (len P r)))}.
Proof.
  intros q i r.
  assert (Top : forall s, reach s -> s r < S (len P r)).
  { intros s R. destruct (lt_dec r (queues P)) as [Hr|Hr].
    - pose proof (reach_len P s R r Hr). lia.
    - rewrite (reach_outside P s R r); lia. }
  destruct (least (starts_within q i r) (starts_within_dec q i r) (S (len P r))) as [(v & L & W & M)|N].
  - exists v. split; [|auto]. intros s R E Hi. destruct (le_lt_dec v (s r)) as [|Lt]; auto.
    exfalso. apply (M (s r) Lt). exists s. auto.
  - exists (S (len P r)). assert (Never : ~ may_start P q i).
    { intros (s & R & E & Hi). apply (N (s r) (Top s R)). exists s. auto. }
    split; auto. intros s R E Hi. exfalso. apply Never. exists s. auto.
Qed.

Definition clock (q i r : nat) : nat := proj1_sig (exact_entry q i r).

Theorem exact_clocks_exist : exact clock.
Proof. intros q i r _ _. unfold clock. apply (proj2_sig (exact_entry q i r)). Qed.

(** *** Must-order is what the exact clock says, and is decidable. *)
Theorem must_iff_clock : forall V, exact V -> forall qa ia qb ib, qb < queues P -> ib < len P qb ->
  may_start P qb ib -> (must P qa ia qb ib <-> ia < V qb ib qa).
Proof.
  intros V Ex qa ia qb ib Hb Hi May. destruct (Ex qb ib qa Hb Hi) as (Low & [W|(N & _)]); [|contradiction].
  destruct W as (s & R & E & Hs & Hv). split; intro M.
  - pose proof (M s R E Hs). lia.
  - intros u Ru Eu Hu. pose proof (Low u Ru Eu Hu). lia.
Qed.

Theorem must_dec : forall qa ia qb ib, {must P qa ia qb ib} + {exists s, reach s /\ enabled s qb /\ s qb = ib /\ s qa <= ia}.
Proof.
  intros qa ia qb ib. destruct (starts_within_dec qb ib qa ia) as [W|W].
  - right. exact W.
  - left. intros s R E Hs. destruct (le_lt_dec (s qa) ia) as [L|L]; auto. exfalso. apply W. exists s. auto.
Qed.

(** *** A race is exactly a missing must-order. *)
Theorem race_iff : forall qa ia qb ib, 
  coenabled P qa ia qb ib <-> ~ must P qa ia qb ib /\ ~ must P qb ib qa ia.
Proof.
  intros qa ia qb ib. split; [apply coenabled_not_must|]. intros (NA & NB).
  destruct (must_dec qa ia qb ib) as [M|(s & Rs & Es & Bs & As)]; [contradiction|].
  destruct (must_dec qb ib qa ia) as [M|(u & Ru & Eu & Au & Bu)]; [contradiction|].
  now apply separate_to_coenabled with (s := s) (u := u).
Qed.

(** *** The witness to print: withhold both tasks and run greedily; both are then enabled. *)
Definition hold (qa ia qb ib : nat) : state :=
  fun x => if Nat.eqb x qa then ia else if Nat.eqb x qb then ib else len P x.

Theorem witness : forall qa ia qb ib g, qa <> qb ->
  Semantics.reach (withhold (hold qa ia qb ib)) g -> terminal (withhold (hold qa ia qb ib)) g ->
  (coenabled P qa ia qb ib <-> g qa = ia /\ g qb = ib /\ enabled g qa /\ enabled g qb).
Proof.
  intros qa ia qb ib g N R T. pose proof (proj1 (withhold_reach _ g) R) as (R' & B). split.
  - intros (s & Rs & As & Bs & Ea & Eb).
    assert (Dom : below s g).
    { apply (dominance (withhold (hold qa ia qb ib))); auto. apply withhold_reach. split; auto.
      intros x Hx. pose proof (reach_len P s Rs x Hx). unfold hold.
      destruct (Nat.eqb x qa) eqn:Xa; [apply Nat.eqb_eq in Xa; subst; lia|].
      destruct (Nat.eqb x qb) eqn:Xb; [apply Nat.eqb_eq in Xb; subst; lia|auto]. }
    assert (Ga : g qa = ia).
    { pose proof (B qa (proj1 Ea)) as X. unfold hold in X. rewrite Nat.eqb_refl in X. pose proof (Dom qa). lia. }
    assert (Gb : g qb = ib).
    { pose proof (B qb (proj1 Eb)) as X. unfold hold in X. rewrite Nat.eqb_refl in X.
      destruct (Nat.eqb qb qa) eqn:Y; [apply Nat.eqb_eq in Y; congruence|]. pose proof (Dom qb). lia. }
    split; [|split; [|split]]; auto; apply enabled_mono with (s := s); auto; lia.
  - intros (Ga & Gb & Ea & Eb). exists g. auto.
Qed.

(** *** The certificate format is complete: the exact clocks pass the local check. *)
Lemma exact_bound : forall V, exact V -> forall q i r, q < queues P -> i < len P q -> V q i r <= S (len P r).
Proof.
  intros V Ex q i r Hq Hi. destruct (Ex q i r Hq Hi) as (Low & [(s & R & E & Hs & Hv)|(_ & ->)]); auto.
  pose proof (Low s R E Hs). destruct (lt_dec r (queues P)) as [Hr|Hr].
  - pose proof (reach_len P s R r Hr). lia.
  - rewrite (reach_outside P s R r) in *; lia.
Qed.

(** A task whose clock is below an exact clock [v] can be completed in a state with fewer than [v] tasks of queue [r]. *)
Lemma gather_one : forall V, exact V -> forall r v, v <= S (len P r) -> forall x j,
  x < queues P -> j < len P x -> plus V x j r < v -> exists u, reach u /\ u r < v /\ j < u x.
Proof.
  intros V Ex r v Hv x j Hx Hj Lt. destruct (Ex x j r Hx Hj) as (_ & [(u & Ru & Eu & Hu & Ur)|(_ & Top)]).
  - exists (advance u x). split; [now apply reach_step|]. split; [|rewrite advance_same; lia].
    unfold plus in Lt. unfold advance. destruct (Nat.eqb r x) eqn:Er; [|lia].
    apply Nat.eqb_eq in Er. subst. lia.
  - exfalso. unfold plus in Lt. destruct (Nat.eqb r x); lia.
Qed.

(** ... and all such tasks in one state. *)
Lemma gather : forall V, exact V -> forall r v, 0 < v -> v <= S (len P r) -> exists J, reach J /\ J r < v /\
  forall x j, x < queues P -> j < len P x -> plus V x j r < v -> j < J x.
Proof.
  intros V Ex r v Hv Hb.
  assert (Row : forall x m, x < queues P -> m <= len P x -> exists J, reach J /\ J r < v /\
                forall j, j < m -> plus V x j r < v -> j < J x).
  { intros x m Hx. induction m as [|m IH]; intro Hm.
    - exists start. split; [constructor|]. split; [unfold start; lia|intros; lia].
    - destruct IH as (J & RJ & Jr & HJ); [lia|]. destruct (lt_dec (plus V x m r) v) as [Lt|Ge].
      + destruct (gather_one V Ex r v Hb x m Hx) as (u & Ru & Ur & Hu); auto.
        exists (join J u). split; [now apply join_closed|]. unfold join. split; [lia|].
        intros j Hj Hp. destruct (Nat.eq_dec j m) as [->|]; [lia|]. specialize (HJ j). lia.
      + exists J. split; [|split]; auto. intros j Hj Hp. destruct (Nat.eq_dec j m) as [->|]; [lia|]. apply HJ; auto. lia. }
  assert (All : forall n, n <= queues P -> exists J, reach J /\ J r < v /\
  forall x j, x < n -> j < len P x -> plus V x j r < v -> j < J x).
  { induction n as [|n IH]; intro Hn.
    - exists start. split; [constructor|]. split; [unfold start; lia|intros; lia].
    - destruct IH as (J & RJ & Jr & HJ); [lia|]. destruct (Row n (len P n)) as (K & RK & Kr & HK); auto.
      exists (join J K). split; [now apply join_closed|]. unfold join. split; [lia|].
      intros x j Hx Hj Hp. destruct (Nat.eq_dec x n) as [->|].
      + specialize (HK j Hj Hp). lia.
      + assert (x < n) by lia. specialize (HJ x j). lia. }
  now apply All.
Qed.

Lemma wait_entry_dec : forall V l r v,
  {exists c t, In (c, t) l /\ low P V c r v < t} + {forall c t, In (c, t) l -> t <= low P V c r v}.
Proof.
  intros V l r v. induction l as [|(c, t) l [IH|IH]].
  - right. intros c t [].
  - left. destruct IH as (c' & t' & I & L). exists c', t'. split; [right|]; auto.
  - destruct (lt_dec (low P V c r v) t) as [L|L].
    + left. exists c, t. split; [left|]; auto.
    + right. intros c' t' [E|I]; [injection E as <- <-; lia|auto].
Qed.

Theorem certificate_complete : forall V, exact V -> local_ok P V.
Proof.
  intros V Ex q i r Hq Hi. unfold entry_ok.
  destruct (Nat.eq_dec (V q i r) 0) as [|NZ]; auto. right.
  destruct (lt_dec 0 i) as [Pos|Zero].
  1: destruct (le_lt_dec (V q i r) (plus V q (i - 1) r)) as [|Before]; auto.
  all: right; destruct (wait_entry_dec V (waits P q i) r (V q i r)) as [|A]; auto; exfalso.
  all: destruct (gather V Ex r (V q i r)) as (J & RJ & Jr & HJ);
    [lia|now apply exact_bound|]; destruct (Ex q i r Hq Hi) as (Low & _).
  all: assert (Up : J q <= i) by
    (destruct (le_lt_dec (J q) i) as [|L]; auto; destruct (passed P J RJ q i L) as (u & Ru & Eu & Hu & Bu);
     pose proof (Low u Ru Eu Hu); pose proof (Bu r); lia).
  all: assert (Jq : J q = i) by (try (pose proof (HJ q (i - 1) Hq); lia); lia).
  all: assert (En : enabled J q); [|pose proof (Low J RJ En Jq); lia].
  all: split; [|split]; auto; [lia|]; intros c t I; rewrite Jq in I; pose proof (A c t I) as W.
  all: apply Nat.le_trans with (1 := W); apply sum_le; intros x Hx; apply sum_select; intros j Hj Hb;
    apply Nat.ltb_lt in Hb; now apply HJ.
Qed.

(** Unconditionally: a must-order of a task that may start has a certificate, and nothing else has one. *)
Theorem certified_iff_must : forall qa ia qb ib, qb < queues P -> ib < len P qb -> may_start P qb ib ->
  (must P qa ia qb ib <-> exists V, local_ok P V /\ ia < V qb ib qa).
Proof.
  intros qa ia qb ib Hb Hi May. split.
  - intro M. exists clock. split; [apply certificate_complete, exact_clocks_exist|].
    now apply (must_iff_clock clock exact_clocks_exist).
  - intros (V & L & C). now apply certificate_sound with (V := V).
Qed.

(** The exact clocks are the greatest table that passes the check (up to tasks that never start). *)
Theorem exact_is_greatest : forall V W, exact V -> local_ok P W -> forall q i r,
  q < queues P -> i < len P q -> may_start P q i -> W q i r <= V q i r.
Proof.
  intros V W Ex L q i r Hq Hi May. destruct (Ex q i r Hq Hi) as (_ & [(s & R & E & Hs & Hv)|(N & _)]); [|contradiction].
  pose proof (clocks_sound P W L q i r s R E Hs). lia.
Qed.
End Exact.
