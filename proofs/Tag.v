(** Rule TAG: elements that carry their epoch.

    A tagged element is one aligned word {value, tag}.  Its uses are numbered 0, 1, 2, ... over steps and launches; use [g] has
    one writer and any number of readers, and a reader polls until it sees tag [g].  The rule asks, with must-order from queue
    order and counter waits only: every reader of use [g] ends before the writer of use [g + 1] starts; and where nobody reads
    use [g], its writer does.  The theorems: no reader ever meets a newer tag, what it returns is the value of its epoch, the
    element it waits for is never lost, and deadlock is decided by the schedule in which a tagged read waits for its writer.

    A poll may also return an older element: the memory model allows that, and it only makes the poll repeat. *)

From Coq Require Import Arith Lia List Bool.
From AMK Require Import Sums Semantics MustOrder Events.

Section Tag.
Variable P : schedule.                                 (** queue order and counter waits *)
Variables addr val : Type.
Variables wq wi : addr -> nat -> nat.                  (** queue and position of the writer of a use *)
Variable tagged_read : nat -> nat -> addr -> nat -> Prop.   (** queue, position, element, use *)
Definition tagged_write (q i : nat) (a : addr) (g : nat) := wq a g = q /\ wi a g = i.

(** *** The rule *)
Definition next_writer_rule := forall a g,
  (forall q i, tagged_read q i a g -> must P q i (wq a (S g)) (wi a (S g))) /\
  ((exists q i, tagged_read q i a g) \/ must P (wq a g) (wi a g) (wq a (S g)) (wi a (S g))).
Hypothesis rule : next_writer_rule.

(** *** The machine: stores and reads happen between a task's start and its end. *)
Record memory := Memory {
  cell : addr -> option nat;                       (** the newest tag *)
  stored : addr -> nat -> option val;              (** what use [g] has stored *)
  seen : nat -> nat -> addr -> option val          (** what a task's tagged read has returned *)
}.
Definition clear := Memory (fun _ => None) (fun _ _ => None) (fun _ _ _ => None).

Inductive treach : state -> (nat -> bool) -> memory -> Prop :=
| t_start : treach start (fun _ => false) clear
| t_eq : forall s busy m s' busy' m', treach s busy m -> (forall q, s q = s' q) -> (forall q, busy q = busy' q) ->
    (forall a, cell m a = cell m' a) -> (forall a g, stored m a g = stored m' a g) ->
    (forall q i a, seen m q i a = seen m' q i a) -> treach s' busy' m'
| t_begin : forall s busy m q, treach s busy m -> busy q = false -> enabled P s q -> treach s (set busy q true) m
| t_store : forall s busy m m' q a g v, treach s busy m -> busy q = true -> tagged_write q (s q) a g -> stored m a g = None ->
    cell m' a = Some g -> (forall b, b <> a -> cell m' b = cell m b) ->
    stored m' a g = Some v -> (forall b h, b <> a \/ h <> g -> stored m' b h = stored m b h) ->
    (forall x i b, seen m' x i b = seen m x i b) -> treach s busy m'
| t_read : forall s busy m m' q a g v, treach s busy m -> busy q = true -> tagged_read q (s q) a g -> stored m a g = Some v ->
    (forall b, cell m' b = cell m b) -> (forall b h, stored m' b h = stored m b h) ->
    seen m' q (s q) a = Some v -> (forall x i b, x <> q \/ i <> s q \/ b <> a -> seen m' x i b = seen m x i b) -> treach s busy m'
| t_end : forall s busy m q, treach s busy m -> busy q = true ->
    (forall a g, tagged_write q (s q) a g -> stored m a g <> None) ->
    (forall a g, tagged_read q (s q) a g -> stored m a g <> None /\ seen m q (s q) a <> None) ->
    treach (advance s q) (set busy q false) m.

Lemma treach_ereach : forall s busy m, treach s busy m -> ereach P s busy.
Proof. induction 1; auto; [constructor|now apply ereach_eq with (s := s) (busy := busy)|now apply ereach_begin|now apply
  ereach_end]. Qed.

(** *** The invariant *)
Definition ended (s : state) (q i : nat) := i < s q.

Record invariant (s : state) (m : memory) : Prop := {
  writers_stored : forall a g, ended s (wq a g) (wi a g) -> stored m a g <> None;
  readers_stored : forall a g q i, tagged_read q i a g -> ended s q i -> stored m a g <> None;
  older_stored : forall a g h, h < g -> stored m a g <> None -> stored m a h <> None;
  older_read : forall a g h q i, h < g -> stored m a g <> None -> tagged_read q i a h -> ended s q i;
  cell_newest : forall a, match cell m a with
    | Some g => stored m a g <> None /\ forall h, g < h -> stored m a h = None
    | None => forall h, stored m a h = None end
}.

Lemma ended_advance : forall s p q i, ended (advance s p) q i -> ended s q i \/ (q = p /\ i = s p).
Proof.
  unfold ended. intros s p q i H. destruct (Nat.eq_dec q p) as [->|N].
  - rewrite advance_same in H. destruct (Nat.eq_dec i (s p)); [right|left]; auto. lia.
  - rewrite advance_other in H by auto. auto.
Qed.

Lemma ended_mono : forall s p q i, ended s q i -> ended (advance s p) q i.
Proof. unfold ended. intros s p q i H. pose proof (below_advance s p q). lia. Qed.

(** The writer of use [g] runs: everything about earlier uses is over. *)
Lemma writer_running : forall s busy m, treach s busy m -> invariant s m -> forall q a g,
  busy q = true -> tagged_write q (s q) a g ->
  forall h, h < g -> stored m a h <> None /\ forall x i, tagged_read x i a h -> ended s x i.
Proof.
  intros s busy m R I q a g Bq (Wq & Wi) h Hh. destruct g as [|g]; [lia|].
  destruct (ereach_inv P s busy (treach_ereach s busy m R)) as (Rs & En).
  pose proof (En q Bq) as Eq. destruct (rule a g) as (Readers & Some_or_order).
  assert (Ended : forall x i, tagged_read x i a g -> ended s x i).
  { intros x i Rd. pose proof (Readers x i Rd) as M. rewrite Wq, Wi in M. now apply M. }
  assert (St : stored m a g <> None).
  { destruct Some_or_order as [(x & i & Rd)|M].
    - now apply (readers_stored s m I a g x i Rd), Ended.
    - apply (writers_stored s m I). rewrite Wq, Wi in M. now apply M. }
  destruct (Nat.eq_dec h g) as [->|N]; [auto|]. assert (h < g) by lia. split.
  - now apply (older_stored s m I a g h).
  - intros x i Rd. now apply (older_read s m I a g h x i).
Qed.

Hypothesis addr_dec : forall a b : addr, {a = b} + {a <> b}.

Theorem always_invariant : forall s busy m, treach s busy m -> invariant s m.
Proof.
  induction 1 as [|s busy m s' busy' m' R I Es Eb Ec Et En|s busy m q R I F E|s busy m m' q a g v R I Bq Wr Fresh C Co St Sto Se
                 |s busy m m' q a g v R I Bq Rd St C Sto Se Seo|s busy m q R I Bq Ws Rs].
  - split; simpl; try (unfold ended, start; intros; lia); try congruence; auto.
  - assert (Ende : forall q i, ended s' q i <-> ended s q i) by (intros; unfold ended; now rewrite Es).
    split.
    + intros a g H. rewrite <- Et. apply (writers_stored s m I). now apply Ende.
    + intros a g q i Rd H. rewrite <- Et. apply (readers_stored s m I a g q i Rd). now apply Ende.
    + intros a g h Lt H. rewrite <- Et in *. now apply (older_stored s m I a g h).
    + intros a g h q i Lt H Rd. rewrite <- Et in H. apply Ende. now apply (older_read s m I a g h q i).
    + intro a. rewrite <- Ec. pose proof (cell_newest s m I a) as Cn. destruct (cell m a) as [g|].
      * rewrite <- Et. destruct Cn as (A & N). split; auto. intros h Hh. rewrite <- Et. auto.
      * intro h. rewrite <- Et. auto.
  - exact I.
  - pose proof (writer_running s busy m R I q a g Bq Wr) as Older.
    assert (None_newer : forall h, g < h -> stored m a h = None).
    { intros h Hh. destruct (stored m a h) eqn:Eh; auto. exfalso.
      apply (older_stored s m I a h g Hh); congruence. }
    assert (Keep : forall b h, stored m b h <> None -> stored m' b h <> None).
    { intros b h H. destruct (addr_dec b a) as [->|N]; [|rewrite Sto; auto].
      destruct (Nat.eq_dec h g) as [->|N]; [congruence|rewrite Sto; auto]. }
    assert (Back : forall b h, stored m' b h <> None -> stored m b h <> None \/ (b = a /\ h = g)).
    { intros b h H. destruct (addr_dec b a) as [->|N]; [|rewrite Sto in H; auto].
      destruct (Nat.eq_dec h g) as [->|N]; [auto|rewrite Sto in H; auto]. }
    split.
    + intros b h H. now apply Keep, (writers_stored s m I).
    + intros b h x i Rd H. now apply Keep, (readers_stored s m I b h x i).
    + intros b h h' Lt H. destruct (Back b h H) as [H'|(-> & ->)].
      * now apply Keep, (older_stored s m I b h h').
      * now apply Keep, Older.
    + intros b h h' x i Lt H Rd. destruct (Back b h H) as [H'|(-> & ->)].
      * now apply (older_read s m I b h h' x i).
      * now apply (Older h' Lt).
    + intro b. destruct (addr_dec b a) as [->|N].
      * rewrite C. split; [congruence|]. intros h Hh. rewrite Sto by lia. auto.
      * rewrite Co by auto. pose proof (cell_newest s m I b) as Cn. destruct (cell m b) as [h|].
        -- rewrite Sto by auto. destruct Cn as (A & Newer). split; auto. intros h' Hh. rewrite Sto by auto. auto.
        -- intro h. rewrite Sto by auto. auto.
  - split.
    + intros b h H. rewrite Sto. now apply (writers_stored s m I).
    + intros b h x i Rd' H. rewrite Sto. now apply (readers_stored s m I b h x i).
    + intros b h h' Lt H. rewrite Sto in *. now apply (older_stored s m I b h h').
    + intros b h h' x i Lt H Rd'. rewrite Sto in H. now apply (older_read s m I b h h' x i).
    + intro b. rewrite C. pose proof (cell_newest s m I b) as Cn. destruct (cell m b) as [h|].
      * rewrite Sto. destruct Cn as (A & Newer). split; auto. intros h' Hh. rewrite Sto. auto.
      * intro h. rewrite Sto. auto.
  - split.
    + intros a g H. destruct (ended_advance _ _ _ _ H) as [H'|(Eq & Ei)]; [now apply (writers_stored s m I)|].
      now apply Ws.
    + intros a g x i Rd H. destruct (ended_advance _ _ _ _ H) as [H'|(-> & ->)]; [now apply (readers_stored s m I a g x i)|].
      now apply (Rs a g).
    + apply (older_stored s m I).
    + intros a g h x i Lt St Rd. apply ended_mono. now apply (older_read s m I a g h x i).
    + apply (cell_newest s m I).
Qed.

(** *** No reader meets a newer tag: until it has ended, no later use is stored. *)
Theorem no_newer_tag : forall s busy m, treach s busy m -> forall q i a g,
  tagged_read q i a g -> ~ ended s q i -> forall h, g < h -> stored m a h = None.
Proof.
  intros s busy m R q i a g Rd N h Hh. destruct (stored m a h) eqn:E; auto. exfalso. apply N.
  apply (older_read s m (always_invariant s busy m R) a h g q i); auto. congruence.
Qed.

(** *** The element is not lost: once stored, it stays the newest until its readers have ended. *)
Theorem not_lost : forall s busy m, treach s busy m -> forall q i a g,
  tagged_read q i a g -> ~ ended s q i -> stored m a g <> None -> cell m a = Some g.
Proof.
  intros s busy m R q i a g Rd N St. pose proof (no_newer_tag s busy m R q i a g Rd N) as Newer.
  pose proof (cell_newest s m (always_invariant s busy m R) a) as C. destruct (cell m a) as [h|]; [|congruence].
  destruct C as (Sh & Ch). destruct (lt_eq_lt_dec h g) as [[Lt| ->]|Gt]; auto.
  - now rewrite (Ch g Lt) in St.
  - now rewrite (Newer h Gt) in Sh.
Qed.

(** *** A tagged read returns the value of its epoch. *)
Hypothesis one_use : forall q i a g h, tagged_read q i a g -> tagged_read q i a h -> g = h.

Theorem returns_its_epoch : forall s busy m, treach s busy m -> forall q i a g v,
  tagged_read q i a g -> seen m q i a = Some v -> stored m a g = Some v.
Proof.
  induction 1 as [|s busy m s' busy' m' R I Es Eb Ec Et En|s busy m q R I F E|s busy m m' q a g v R I Bq Wr Fresh C Co St Sto Se
                 |s busy m m' q a g v R I Bq Rd St C Sto Se Seo|s busy m q R I Bq Ws Rs]; intros q' i b h u Rd' Seen.
  - discriminate.
  - rewrite <- Et. rewrite <- En in Seen. eauto.
  - eauto.
  - rewrite Se in Seen. pose proof (I q' i b h u Rd' Seen) as Old. destruct (addr_dec b a) as [->|N]; [|rewrite Sto; auto].
    destruct (Nat.eq_dec h g) as [->|N]; [congruence|rewrite Sto; auto].
  - rewrite Sto. destruct (Nat.eq_dec q' q) as [->|N]; [|rewrite Seo in Seen; eauto].
    destruct (Nat.eq_dec i (s q)) as [->|N]; [|rewrite Seo in Seen; eauto].
    destruct (addr_dec b a) as [->|N]; [|rewrite Seo in Seen; eauto].
    rewrite (one_use q (s q) a h g Rd' Rd). congruence.
  - eauto.
Qed.

(** *** Deadlock: the schedule in which a tagged read waits for its writer decides it. *)
Variable P' : schedule.
Hypothesis same_queues : queues P' = queues P.
Hypothesis same_len : forall q, len P' q = len P q.
Hypothesis reads_wait : forall s q, enabled P' s q ->
  enabled P s q /\ forall a g, tagged_read q (s q) a g -> ended s (wq a g) (wi a g).

Lemma first_beyond : forall u, reach P' u ->
  forall s, below u s \/ exists r q, reach P' r /\ below r s /\ enabled P' r q /\ r q = s q.
Proof.
  induction 1 as [|u w R IH E|u q R IH En]; intro s.
  - left. intro q. unfold start. lia.
  - destruct (IH s) as [B|]; auto. left. intro q. rewrite <- E. apply B.
  - destruct (IH s) as [B|]; auto. destruct (le_lt_dec (s q) (u q)) as [Le|Lt].
    + right. exists u, q. pose proof (B q). split; [|split; [|split]]; auto. lia.
    + left. intro r. destruct (Nat.eq_dec r q) as [->|N]; [rewrite advance_same; lia|rewrite advance_other; auto].
Qed.

(** As long as a task is left, some queue's next task has all it waits for: counters, and the elements it polls. *)
Theorem tagged_progress : deadlock_free P' -> forall s busy m, treach s busy m -> ~ complete P s ->
  exists q, enabled P s q /\ forall a g, tagged_read q (s q) a g -> cell m a = Some g.
Proof.
  intros D s busy m R N. destruct (greedy_run P') as (u & Ru & Tu). pose proof (D u Ru Tu) as Cu.
  destruct (ereach_inv P s busy (treach_ereach s busy m R)) as (Rs & _).
  destruct (first_beyond u Ru s) as [B|(r & q & Rr & Br & Er & Eq)].
  - exfalso. apply N. intros q Hq. assert (Hq' : q < queues P') by (rewrite same_queues; auto).
    pose proof (B q). pose proof (reach_len P s Rs q Hq). rewrite (Cu q Hq'), same_len in *. lia.
  - destruct (reads_wait r q Er) as (En & Writers). exists q. split; [now apply enabled_mono with (s := r)|].
    intros a g Rd. apply (not_lost s busy m R q (s q) a g Rd); [unfold ended; lia|].
    apply (writers_stored s m (always_invariant s busy m R)). rewrite <- Eq in Rd.
    pose proof (Writers a g Rd) as W. unfold ended in *. pose proof (Br (wq a g)). lia.
Qed.
End Tag.
