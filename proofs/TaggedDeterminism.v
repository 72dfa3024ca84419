(** Tagged elements and plain memory together: what a schedule computes when bodies also hand over values by tagged elements.

    As in Determinism.v bodies are arbitrary sequential programs.  Besides reading and writing plain addresses they may store a
    tagged element of a use that is theirs, once, and poll for the element of a use that they declare: a poll goes on only when it
    sees its tag.  A task ends only when it has stored all its elements and has seen all it declared to read.  Under the
    next-writer rule, and without races on plain addresses, all runs that end have the same plain memory, the same elements, and
    each queue has read the same values. *)

From Coq Require Import Arith Lia List Bool.
From AMK Require Import Sums Semantics MustOrder Events Confluence Tag.
From AMK Require Determinism.
Import ListNotations.

Section Tagged.
Variable P : schedule.
Variables addr elem val local : Type.                 (** plain addresses, tagged elements *)
Hypothesis addr_dec : forall a b : addr, {a = b} + {a <> b}.
Hypothesis elem_dec : forall a b : elem, {a = b} + {a <> b}.

Inductive action :=
| Read (a : addr) (next : val -> local)
| Write (a : addr) (v : val) (next : local)
| Poll (e : elem) (g : nat) (next : val -> local)
| Store (e : elem) (g : nat) (v : val) (next : local)
| Done.

Variable act : local -> action.
Variable entry : nat -> nat -> local.
Variables reads writes : nat -> nat -> addr -> Prop.  (** declared plain footprints *)
Variable polls : nat -> nat -> list (elem * nat).     (** elements and uses that a task declares to read *)
Variable stores : nat -> nat -> list (elem * nat).    (** ... and to store *)
Variables wq wi : elem -> nat -> nat.                 (** the one writer of each use *)
Hypothesis one_writer : forall q i e g, In (e, g) (stores q i) -> wq e g = q /\ wi e g = i.
Hypothesis all_stores : forall q i e g, wq e g = q -> wi e g = i -> i < len P q -> In (e, g) (stores q i).

Definition tagged_read (q i : nat) (e : elem) (g : nat) := In (e, g) (polls q i).
Hypothesis rule : next_writer_rule P elem wq wi tagged_read.

Inductive visits (q i : nat) : local -> Prop :=
| visits_entry : visits q i (entry q i)
| visits_read : forall l a k v, visits q i l -> act l = Read a k -> visits q i (k v)
| visits_write : forall l a v l', visits q i l -> act l = Write a v l' -> visits q i l'
| visits_poll : forall l e g k v, visits q i l -> act l = Poll e g k -> visits q i (k v)
| visits_store : forall l e g v l', visits q i l -> act l = Store e g v l' -> visits q i l'.

Hypothesis conforms : forall q i l, visits q i l ->
  match act l with Read a _ => reads q i a | Write a _ _ => writes q i a | _ => True end.

Hypothesis free : Determinism.race_free P addr reads writes.

(** *** Machine states and steps *)
Record machine := Machine {
  done : state; busy : nat -> option local; mem : addr -> val; tags : Tag.memory elem val; log : nat -> list val
}.

Definition listed (l : list (elem * nat)) (e : elem) (g : nat) : bool :=
  existsb (fun x => (if elem_dec (fst x) e then true else false) && Nat.eqb (snd x) g) l.

Definition is_some {A} (o : option A) : bool := match o with Some _ => true | None => false end.

Definition may_end (q i : nat) (m : Tag.memory elem val) : bool :=
  forallb (fun w => is_some (stored _ _ m (fst w) (snd w))) (stores q i) &&
  forallb (fun r => is_some (stored _ _ m (fst r) (snd r)) && is_some (seen _ _ m q i (fst r))) (polls q i).

Definition put {A} (dec : forall a b : A, {a = b} + {a <> b}) {V} (m : A -> V) (a : A) (v : V) : A -> V :=
  fun b => if dec b a then v else m b.

Definition store_in (m : Tag.memory elem val) (e : elem) (g : nat) (v : val) : Tag.memory elem val :=
  Tag.Memory elem val (put elem_dec (cell _ _ m) e (Some g))
    (fun b h => if elem_dec b e then if Nat.eqb h g then Some v else stored _ _ m b h else stored _ _ m b h) (seen _ _ m).

Definition see_in (m : Tag.memory elem val) (q i : nat) (e : elem) (v : val) : Tag.memory elem val :=
  Tag.Memory elem val (cell _ _ m) (stored _ _ m)
    (fun x j b => if Nat.eqb x q then if Nat.eqb j i then if elem_dec b e then Some v else seen _ _ m x j b else seen _ _ m x j b
                  else seen _ _ m x j b).

(** What a poll for use [g] returns, once it sees its tag. *)
Definition polled (m : Tag.memory elem val) (e : elem) (g : nat) : option val :=
  match cell _ _ m e with Some h => if Nat.eqb h g then stored _ _ m e g else None | None => None end.

Definition step (q : nat) (x : machine) : option machine :=
  match busy x q with
  | None => if enabled_dec P (done x) q
            then Some (Machine (done x) (set (busy x) q (Some (entry q (done x q)))) (mem x) (tags x) (log x)) else None
  | Some l =>
      match act l with
      | Read a k => Some (Machine (done x) (set (busy x) q (Some (k (mem x a)))) (mem x) (tags x) (set (log x) q (mem x a :: log x
        q)))
      | Write a v l' => Some (Machine (done x) (set (busy x) q (Some l')) (put addr_dec (mem x) a v) (tags x) (log x))
      | Poll e g k =>
          if listed (polls q (done x q)) e g then
            match polled (tags x) e g with
            | Some v => Some (Machine (done x) (set (busy x) q (Some (k v))) (mem x) (see_in (tags x) q (done x q) e v) (set (log
              x) q (v :: log x q)))
            | None => None
            end
          else None
      | Store e g v l' =>
          if listed (stores q (done x q)) e g && negb (is_some (stored _ _ (tags x) e g))
          then Some (Machine (done x) (set (busy x) q (Some l')) (mem x) (store_in (tags x) e g v) (log x)) else None
      | Done => if may_end q (done x q) (tags x)
                then Some (Machine (advance (done x) q) (set (busy x) q None) (mem x) (tags x) (log x)) else None
      end
  end.

Definition same_tags (m m' : Tag.memory elem val) :=
  (forall e, cell _ _ m e = cell _ _ m' e) /\ (forall e g, stored _ _ m e g = stored _ _ m' e g) /\
  (forall q i e, seen _ _ m q i e = seen _ _ m' q i e).

Definition same (x y : machine) :=
  (forall q, done x q = done y q) /\ (forall q, busy x q = busy y q) /\ (forall a, mem x a = mem y a) /\
  same_tags (tags x) (tags y) /\ (forall q, log x q = log y q).

Lemma same_sym : forall x y, same x y -> same y x.
Proof. intros x y (A & B & C & (D & E & F) & G). repeat split; intros; symmetry; auto. Qed.

Lemma same_trans : forall x y z, same x y -> same y z -> same x z.
Proof.
  intros x y z (A & B & C & (D & E & F) & G) (A' & B' & C' & (D' & E' & F') & G').
  repeat split; intros; [rewrite A|rewrite B|rewrite C|rewrite D|rewrite E|rewrite F|rewrite G]; auto.
Qed.

Lemma may_end_same : forall q i m m', same_tags m m' -> may_end q i m = may_end q i m'.
Proof.
  intros q i m m' (C & S & N). unfold may_end. f_equal; apply eq_true_iff_eq; rewrite !forallb_forall;
    split; intros H w I; specialize (H w I); rewrite ?S, ?N in *; rewrite <- ?S, <- ?N in *; auto.
Qed.

Lemma polled_same : forall m m' e g, same_tags m m' -> polled m e g = polled m' e g.
Proof. intros m m' e g (C & S & N). unfold polled. rewrite C. destruct (cell _ _ m' e); auto. now rewrite S. Qed.

Lemma step_same : forall q x y x', same x y -> step q x = Some x' -> exists y', step q y = Some y' /\ same x' y'.
Proof.
  intros q x y x' (A & B & C & T & G) St. assert (T' := T). destruct T' as (D & E & F). unfold step in *. rewrite <- B.
  destruct (busy x q) as [l|].
  - destruct (act l) as [a k|a v l'|e g k|e g v l'|].
    + injection St as <-. eexists; split; [reflexivity|]. repeat split; simpl; intros; auto; unfold set;
        rewrite ?(C a), ?(G q); destruct (Nat.eqb _ q); auto.
    + injection St as <-. eexists; split; [reflexivity|]. repeat split; simpl; intros; auto; unfold set, put;
        [destruct (Nat.eqb _ q); auto|destruct (addr_dec _ a); auto].
    + rewrite <- A. destruct (listed _ e g); [|discriminate]. rewrite <- (polled_same _ _ e g T).
      destruct (polled (tags x) e g) as [v|]; [|discriminate]. injection St as <-. eexists; split; [reflexivity|].
      repeat split; simpl; intros; auto; unfold set; rewrite ?(G q); try (destruct (Nat.eqb _ q); auto).
      rewrite F. auto.
    + rewrite <- A, <- E. destruct (listed _ e g && _); [|discriminate]. injection St as <-. eexists; split; [reflexivity|].
      repeat split; simpl; intros; auto; unfold set, put; [destruct (Nat.eqb _ q); auto|rewrite D; auto|rewrite E; auto].
    + rewrite <- A, <- (may_end_same q (done x q) _ _ T). destruct (may_end q (done x q) (tags x)); [|discriminate].
      injection St as <-. eexists; split; [reflexivity|]. repeat split; simpl; intros; auto; unfold set, advance;
        [rewrite A; auto|destruct (Nat.eqb _ q); auto].
  - destruct (enabled_dec P (done x) q) as [En|]; [|discriminate]. injection St as <-.
    destruct (enabled_dec P (done y) q) as [En'|N].
    + eexists; split; [reflexivity|]. repeat split; simpl; auto. intro z. unfold set. rewrite A. destruct (Nat.eqb z q); auto.
    + exfalso. apply N. apply enabled_mono with (s := done x); auto. intro z. rewrite A. auto.
Qed.

Variable mem0 : addr -> val.
Definition initial := Machine start (fun _ => None) mem0 (Tag.clear elem val) (fun _ => []).

(** *** The invariant *)
Definition running (x : machine) (q : nat) : bool := is_some (busy x q).
Definition good (x : machine) :=
  treach P elem val wq wi tagged_read (done x) (running x) (tags x) /\ forall q l, busy x q = Some l -> visits q (done x q) l.

Lemma listed_in : forall l e g, listed l e g = true -> In (e, g) l.
Proof.
  intros l e g H. apply existsb_exists in H. destruct H as ((e', g') & I & H). apply andb_true_iff in H. simpl in H.
  destruct H as (A & B). destruct (elem_dec e' e) as [->|]; [|discriminate]. apply Nat.eqb_eq in B. now subst.
Qed.

Lemma good_initial : good initial.
Proof. split; [apply t_start|discriminate]. Qed.

Lemma running_set : forall x q l z, busy x q = Some l -> running x z = set (running x) q true z.
Proof. intros x q l z B. unfold set, running. destruct (Nat.eqb z q) eqn:E; auto. apply Nat.eqb_eq in E. subst. now rewrite B. Qed.

Lemma good_step : forall q x y, good x -> step q x = Some y -> good y.
Proof.
  intros q x y (R & V) St. unfold step in St. destruct (busy x q) as [l|] eqn:Bq.
  - assert (Rq : running x q = true) by (unfold running; now rewrite Bq).
    assert (Same : forall n, (forall z, running x z = is_some (set (busy x) q (Some n) z))).
    { intros n z. unfold set, running. destruct (Nat.eqb z q) eqn:E; auto. apply Nat.eqb_eq in E. subst. now rewrite Bq. }
    assert (Vis : forall n, visits q (done x q) n -> forall z l0, set (busy x) q (Some n) z = Some l0 -> visits z (done x z) l0).
    { intros n Vn z l0. unfold set. destruct (Nat.eqb z q) eqn:E; auto. apply Nat.eqb_eq in E. subst. intro Eq.
      now injection Eq as <-. }
    destruct (act l) as [a k|a v l'|e g k|e g v l'|] eqn:Act.
    + injection St as <-. split; simpl.
      * eapply t_eq; [apply R| | | | |]; auto. intro z. apply Same.
      * apply Vis. now apply visits_read with (l := l) (a := a); [apply V|].
    + injection St as <-. split; simpl.
      * eapply t_eq; [apply R| | | | |]; auto. intro z. apply Same.
      * apply Vis. now apply visits_write with (l := l) (a := a) (v := v); [apply V|].
    + destruct (listed _ e g) eqn:Li; [|discriminate]. apply listed_in in Li.
      destruct (polled (tags x) e g) as [v|] eqn:Po; [|discriminate]. injection St as <-. split; simpl.
      * assert (Sv : stored _ _ (tags x) e g = Some v).
        { unfold polled in Po. destruct (cell _ _ (tags x) e) as [h|]; [|discriminate].
          destruct (Nat.eqb h g) eqn:Hg; [auto|discriminate]. }
        eapply t_eq with (busy := running x); [|auto|intro z; apply Same|auto|auto|auto].
        eapply t_read with (m := tags x) (q := q) (a := e) (g := g) (v := v); eauto; simpl.
        -- rewrite !Nat.eqb_refl. destruct (elem_dec e e); congruence.
        -- intros z i b Ne. destruct (Nat.eqb z q) eqn:E1; auto. destruct (Nat.eqb i (done x q)) eqn:E2; auto.
           destruct (elem_dec b e) as [->|]; auto. apply Nat.eqb_eq in E1, E2. exfalso. destruct Ne as [N|[N|N]]; contradiction.
      * apply Vis. now apply visits_poll with (l := l) (e := e) (g := g); [apply V|].
    + destruct (listed _ e g && _) eqn:Li; [|discriminate]. injection St as <-. apply andb_true_iff in Li. destruct Li as (Li & Fr).
      apply listed_in in Li. split; simpl.
      * eapply t_eq with (busy := running x); [|auto|intro z; apply Same|auto|auto|auto].
        eapply t_store with (m := tags x) (q := q) (a := e) (g := g) (v := v); eauto; simpl.
        -- now apply one_writer.
        -- destruct (stored _ _ (tags x) e g); [discriminate|auto].
        -- unfold put. destruct (elem_dec e e); congruence.
        -- intros b Nb. unfold put. destruct (elem_dec b e); congruence.
        -- rewrite Nat.eqb_refl. destruct (elem_dec e e); congruence.
        -- intros b h Ne. destruct (elem_dec b e) as [->|]; auto. destruct (Nat.eqb h g) eqn:Eh; auto. apply Nat.eqb_eq in Eh.
           exfalso. destruct Ne; contradiction.
      * apply Vis. now apply visits_store with (l := l) (e := e) (g := g) (v := v); [apply V|].
    + destruct (may_end q (done x q) (tags x)) eqn:Me; [|discriminate]. injection St as <-. split; simpl.
      * unfold may_end in Me. apply andb_true_iff in Me. destruct Me as (Ms & Mr). rewrite forallb_forall in Ms, Mr.
        assert (Hl : done x q < len P q).
        { destruct (ereach_inv P _ _ (treach_ereach P elem val wq wi tagged_read _ _ _ R)) as (_ & En). apply (En q Rq). }
        assert (Te : treach P elem val wq wi tagged_read (advance (done x) q) (set (running x) q false) (tags x)).
        { apply t_end; auto.
          - intros e g (W1 & W2). specialize (Ms (e, g) (all_stores q (done x q) e g W1 W2 Hl)). simpl in Ms.
            intro N. rewrite N in Ms. discriminate.
          - intros e g Rd. specialize (Mr (e, g) Rd). simpl in Mr. apply andb_true_iff in Mr. destruct Mr as (M1 & M2).
            split; intro N; [rewrite N in M1|rewrite N in M2]; discriminate. }
        eapply t_eq; [apply Te|auto| |auto|auto|auto].
        intro z. unfold set, running. simpl. unfold set. destruct (Nat.eqb z q); auto.
      * intros z l0. unfold set. destruct (Nat.eqb z q) eqn:E; [discriminate|]. apply Nat.eqb_neq in E.
        rewrite advance_other by auto. auto.
  - destruct (enabled_dec P (done x) q) as [E|]; [|discriminate]. injection St as <-. split; simpl.
    + assert (Tb : treach P elem val wq wi tagged_read (done x) (set (running x) q true) (tags x)).
      { apply t_begin; auto. unfold running. now rewrite Bq. }
      eapply t_eq; [apply Tb|auto| |auto|auto|auto]. intro z. unfold set, running. simpl. unfold set. destruct (Nat.eqb z q); auto.
    + intros z l0. unfold set. destruct (Nat.eqb z q) eqn:Eq; auto. apply Nat.eqb_eq in Eq. subst.
      intro Eq. injection Eq as <-. constructor.
Qed.

(** *** What cannot happen at the same time *)
Lemma no_conflict : forall x qa qb la lb, good x -> qa <> qb -> busy x qa = Some la -> busy x qb = Some lb ->
  ~ Determinism.conflict addr reads writes qa (done x qa) qb (done x qb).
Proof.
  intros x qa qb la lb (R & V) N A B C. apply (free qa (done x qa) qb (done x qb) N C).
  apply (overlap_iff_coenabled P); auto. exists (done x), (running x).
  split; [now apply (treach_ereach P elem val wq wi tagged_read _ _ (tags x))|]. unfold running. now rewrite A, B.
Qed.

(** Two queues never store the same element at the same time: of two uses, the earlier is stored before the later one's writer
  runs. *)
Lemma no_two_stores : forall x q r lq lr e g h, good x -> q <> r -> busy x q = Some lq -> busy x r = Some lr ->
  In (e, g) (stores q (done x q)) -> In (e, h) (stores r (done x r)) ->
  stored _ _ (tags x) e g = None -> stored _ _ (tags x) e h = None -> False.
Proof.
  intros x q r lq lr e g h (R & V) N Bq Br Sq Sr Fg Fh.
  assert (I := always_invariant P elem val wq wi tagged_read rule elem_dec _ _ _ R).
  assert (Rq : running x q = true) by (unfold running; now rewrite Bq).
  assert (Rr : running x r = true) by (unfold running; now rewrite Br).
  destruct (one_writer _ _ _ _ Sq) as (Wq & Iq). destruct (one_writer _ _ _ _ Sr) as (Wr & Ir).
  destruct (lt_eq_lt_dec g h) as [[Lt| ->]|Gt]; [|congruence|].
  - apply (writer_running P elem val wq wi tagged_read rule _ _ _ R I r e h Rr (conj Wr Ir) g Lt). exact Fg.
  - apply (writer_running P elem val wq wi tagged_read rule _ _ _ R I q e g Rq (conj Wq Iq) h Gt). exact Fh.
Qed.

(** Nobody stores an element that a running task polls with success. *)
Lemma no_store_under_poll : forall x q r lq lr e g h v, good x -> q <> r -> busy x q = Some lq -> busy x r = Some lr ->
  In (e, g) (polls q (done x q)) -> polled (tags x) e g = Some v -> In (e, h) (stores r (done x r)) ->
  stored _ _ (tags x) e h = None -> False.
Proof.
  intros x q r lq lr e g h v (R & V) N Bq Br Pq Po Sr Fh.
  assert (I := always_invariant P elem val wq wi tagged_read rule elem_dec _ _ _ R).
  assert (Rr : running x r = true) by (unfold running; now rewrite Br).
  destruct (one_writer _ _ _ _ Sr) as (Wr & Ir).
  assert (Sg : stored _ _ (tags x) e g = Some v).
  { unfold polled in Po. destruct (cell _ _ (tags x) e) as [c|]; [|discriminate].
    destruct (Nat.eqb c g) eqn:Ec; [auto|discriminate]. }
  destruct (lt_eq_lt_dec g h) as [[Lt| ->]|Gt]; [|congruence|].
  - destruct (writer_running P elem val wq wi tagged_read rule _ _ _ R I r e h Rr (conj Wr Ir) g Lt) as (_ & Ended).
    pose proof (Ended q (done x q) Pq) as En. unfold ended in En. lia.
  - assert (stored _ _ (tags x) e h <> None); [|contradiction].
    apply (older_stored _ _ _ _ _ _ _ I e g h Gt). congruence.
Qed.

(** Steps of the others do not take away what a task's end needs, nor what a poll has found. *)
Lemma may_end_store : forall q i m e g v, may_end q i m = true -> may_end q i (store_in m e g v) = true.
Proof.
  intros q i m e g v H. unfold may_end in *. apply andb_true_iff in H. destruct H as (A & B). rewrite forallb_forall in A, B.
  assert (Up : forall b h, is_some (stored _ _ m b h) = true -> is_some (stored _ _ (store_in m e g v) b h) = true).
  { intros b h S. simpl. destruct (elem_dec b e); auto. destruct (Nat.eqb h g); auto. }
  apply andb_true_iff. split; rewrite forallb_forall; intros w I.
  - now apply Up, A.
  - specialize (B w I). apply andb_true_iff in B. destruct B as (B1 & B2). apply andb_true_iff. split; [now apply Up|exact B2].
Qed.

Lemma may_end_see : forall q i m r j e v, q <> r -> may_end q i (see_in m r j e v) = may_end q i m.
Proof.
  intros q i m r j e v N. unfold may_end. f_equal. apply eq_true_iff_eq. rewrite !forallb_forall.
  apply Nat.eqb_neq in N. split; intros H w I; specialize (H w I); simpl in *; rewrite N in *; auto.
Qed.

Lemma polled_store : forall m e g b h v, e <> b -> polled (store_in m b h v) e g = polled m e g.
Proof. intros m e g b h v N. unfold polled, store_in, put. simpl. destruct (elem_dec e b); [contradiction|auto]. Qed.

Lemma polled_see : forall m e g q i b v, polled (see_in m q i b v) e g = polled m e g.
Proof. reflexivity. Qed.

Lemma stored_store_other : forall m e g b h v, e <> b -> stored _ _ (store_in m b h v) e g = stored _ _ m e g.
Proof. intros m e g b h v N. simpl. destruct (elem_dec e b); [contradiction|auto]. Qed.

Lemma put_other : forall A (dec : forall a b : A, {a = b} + {a <> b}) V (m : A -> V) a v b, b <> a -> put dec m a v b = m b.
Proof. intros A dec V m a v b N. unfold put. destruct (dec b a); congruence. Qed.

Lemma set_commute : forall A (f : nat -> A) q r a b x, q <> r -> set (set f q a) r b x = set (set f r b) q a x.
Proof.
  intros A f q r a b x N. unfold set. destruct (Nat.eqb x r) eqn:R; destruct (Nat.eqb x q) eqn:Q; auto.
  apply Nat.eqb_eq in R, Q. congruence.
Qed.

(** *** Steps of different queues commute. *)
Lemma diamond : forall x q r y z, good x -> q <> r -> step q x = Some y -> step r x = Some z ->
  exists w w', step r y = Some w /\ step q z = Some w' /\ same w w'.
Proof.
  intros x q r y z G N Sq Sr. assert (N' : r <> q) by auto.
  assert (Up : forall s q r, q <> r -> enabled P s r -> enabled P (advance s q) r).
  { intros s q0 r0 N0 E. apply enabled_mono with (s := s); auto; [apply below_advance|now rewrite advance_other by auto]. }
  assert (NC := no_conflict x q r). pose proof (proj2 G) as V.
  unfold step in Sq, Sr. unfold step.
  destruct (busy x q) as [lq|] eqn:Bq;
    [pose proof (conforms _ _ _ (V q lq Bq)) as Fq; destruct (act lq) as [aq kq|aq vq nq|eq gq kq|eq gq vq nq|] eqn:Aq;
      [| |destruct (listed (polls q (done x q)) eq gq) eqn:Lq; [destruct (polled (tags x) eq gq) as [pq|] eqn:Pq|];
        try discriminate Sq
       |destruct (listed (stores q (done x q)) eq gq) eqn:Lq; [destruct (stored _ _ (tags x) eq gq) eqn:Fsq|]; try discriminate Sq
       |destruct (may_end q (done x q) (tags x)) eqn:Mq; try discriminate Sq]
    |destruct (enabled_dec P (done x) q) as [Eq|]; [|discriminate Sq]];
  (destruct (busy x r) as [lr|] eqn:Br;
    [pose proof (conforms _ _ _ (V r lr Br)) as Fr; destruct (act lr) as [ar kr|ar vr nr|er gr kr|er gr vr nr|] eqn:Ar;
      [| |destruct (listed (polls r (done x r)) er gr) eqn:Lr; [destruct (polled (tags x) er gr) as [pr|] eqn:Pr|];
        try discriminate Sr
       |destruct (listed (stores r (done x r)) er gr) eqn:Lr; [destruct (stored _ _ (tags x) er gr) eqn:Fsr|]; try discriminate Sr
       |destruct (may_end r (done x r) (tags x)) eqn:Mr; try discriminate Sr]
    |destruct (enabled_dec P (done x) r) as [Er|]; [|discriminate Sr]]);
  simpl in Sq, Sr; injection Sq as <-; injection Sr as <-; cbn [busy done mem tags log];
  rewrite ?(set_other _ _ q _ r N'), ?(set_other _ _ r _ q N), ?Bq, ?Br, ?Aq, ?Ar;
  rewrite ?(advance_other _ _ _ N), ?(advance_other _ _ _ N');
  try (assert (Ne : ~ Determinism.conflict addr reads writes q (done x q) r (done x r)) by (apply (NC lq lr); auto));
  try (assert (Ad : aq <> ar) by (intro; subst; apply Ne; exists ar; tauto));
  try (assert (Ed : eq <> er) by (intro; subst;
         first [apply (no_two_stores x q r lq lr er gq gr); auto; apply listed_in; assumption
               |apply (no_store_under_poll x q r lq lr er gq gr pq); auto; apply listed_in; assumption
               |apply (no_store_under_poll x r q lr lq er gr gq pr); auto; apply listed_in; assumption]));
  rewrite ?Lq, ?Lr, ?polled_see, ?may_end_see by auto;
  rewrite ?polled_store, ?stored_store_other by auto;
  rewrite ?Pq, ?Pr, ?Mq, ?Mr; cbn [stored see_in store_in]; rewrite ?Fsq, ?Fsr; cbn [is_some negb andb];
  rewrite ?(may_end_store _ _ _ _ _ _ Mq), ?(may_end_store _ _ _ _ _ _ Mr);
  repeat match goal with
  | |- context [enabled_dec P ?s ?k] => destruct (enabled_dec P s k) as [|Bad]; [|exfalso; apply Bad; auto]
  end.
  all: try (eexists; eexists; split; [reflexivity|split; [reflexivity|]]).
  all: try solve [repeat split; cbn [busy done mem tags log cell stored seen see_in store_in]; intros;
    rewrite ?(set_other _ _ q _ r N'), ?(set_other _ _ r _ q N); auto; try (apply set_commute; auto)].
  - rewrite (put_other _ addr_dec _ (mem x) ar vr aq Ad).
    repeat split; cbn [busy done mem tags log]; intros; auto; apply set_commute; auto.
  - rewrite (put_other _ addr_dec _ (mem x) aq vq ar) by auto.
    repeat split; cbn [busy done mem tags log]; intros; auto; apply set_commute; auto.
  - repeat split; cbn [busy done mem tags log]; intros; auto; [apply set_commute; auto|].
    unfold put. destruct (addr_dec a ar), (addr_dec a aq); congruence.
  - repeat split; cbn [busy done mem tags log cell stored seen see_in]; intros; auto; try (apply set_commute; auto).
    destruct (Nat.eqb q0 r) eqn:E1; destruct (Nat.eqb q0 q) eqn:E2; auto.
    apply Nat.eqb_eq in E1, E2. congruence.
  - repeat split; cbn [busy done mem tags log cell stored seen store_in]; intros; auto; [apply set_commute; auto| |].
    + unfold put. destruct (elem_dec e er), (elem_dec e eq); congruence.
    + destruct (elem_dec e er), (elem_dec e eq); congruence.
  - repeat split; cbn [busy done mem tags log]; intros; auto; [|apply set_commute; auto].
    unfold advance. destruct (Nat.eqb q0 r), (Nat.eqb q0 q); auto.
Qed.

(** *** All runs that end, end alike. *)
Notation run := (Confluence.run machine same step).
Notation final := (Confluence.final machine step).

Theorem tagged_every_run_reaches_the_end : forall n z, run n initial z -> final z ->
  forall m y, run m initial y -> m <= n /\ run (n - m) y z.
Proof.
  exact (Confluence.every_run_reaches_the_end machine same step good same_sym same_trans step_same good_step diamond initial
    good_initial).
Qed.

Theorem tagged_deterministic : forall n m y z, run n initial y -> final y -> run m initial z -> final z ->
  n = m /\ (forall a, mem y a = mem z a) /\ (forall e g, stored _ _ (tags y) e g = stored _ _ (tags z) e g) /\
  (forall q, log y q = log z q).
Proof.
  intros n m y z Ry Fy Rz Fz.
  destruct (Confluence.ends_alike machine same step good same_sym same_trans step_same good_step diamond initial good_initial n m
    y z Ry Fy Rz Fz)
    as (E & _ & _ & M & (_ & S & _) & R). auto.
Qed.
End Tagged.
