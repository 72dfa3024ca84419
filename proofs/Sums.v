(** Finite sums of natural numbers: the arithmetic behind counters. *)

From Coq Require Import Arith Lia Bool.

(** [sum n f] is f 0 + ... + f (n - 1). *)
Fixpoint sum (n : nat) (f : nat -> nat) : nat :=
  match n with
  | 0 => 0
  | S k => sum k f + f k
  end.

Lemma sum_le : forall n f g, (forall i, i < n -> f i <= g i) -> sum n f <= sum n g.
Proof.
  induction n as [|n IH]; simpl; intros f g H; [lia|].
  assert (f n <= g n) by (apply H; lia).
  assert (sum n f <= sum n g) by (apply IH; intros; apply H; lia). lia.
Qed.

Lemma sum_ext : forall n f g, (forall i, i < n -> f i = g i) -> sum n f = sum n g.
Proof.
  intros n f g H. apply Nat.le_antisymm; apply sum_le; intros i Hi; rewrite H; auto.
Qed.

Lemma sum_longer : forall m n f, n <= m -> sum n f <= sum m f.
Proof.
  induction m as [|m IH]; intros n f H.
  - replace n with 0 by lia. auto.
  - destruct (Nat.eq_dec n (S m)) as [->|N]; auto.
    simpl. assert (sum n f <= sum m f) by (apply IH; lia). lia.
Qed.

Lemma sum_lt : forall n f g k,
  (forall i, i < n -> f i <= g i) -> k < n -> f k < g k -> sum n f < sum n g.
Proof.
  induction n as [|n IH]; simpl; intros f g k H Hk Lt; [lia|].
  assert (f n <= g n) by (apply H; lia).
  destruct (Nat.eq_dec k n) as [->|N].
  - assert (sum n f <= sum n g) by (apply sum_le; intros; apply H; lia). lia.
  - assert (sum n f < sum n g) by (apply (IH f g k); [intros; apply H| |]; lia). lia.
Qed.

Lemma sum_add : forall n f g, sum n (fun i => f i + g i) = sum n f + sum n g.
Proof. induction n as [|n IH]; simpl; intros f g; [|rewrite IH]; lia. Qed.

Lemma sum_scale : forall n k f, sum n (fun i => k * f i) = k * sum n f.
Proof. induction n as [|n IH]; simpl; intros k f; [|rewrite IH]; lia. Qed.

Lemma sum_split : forall n m f, sum (n + m) f = sum n f + sum m (fun i => f (n + i)).
Proof.
  induction m as [|m IH]; intro f.
  - rewrite Nat.add_0_r. simpl. lia.
  - rewrite Nat.add_succ_r. simpl. rewrite IH. lia.
Qed.

(** A sum over the selected indices fits below a bound that covers them all. *)
Lemma sum_select : forall n m (b : nat -> bool) f,
  (forall j, j < n -> b j = true -> j < m) ->
  sum n (fun j => if b j then f j else 0) <= sum m f.
Proof.
  induction n as [|n IH]; simpl; intros m b f H; [lia|].
  destruct (b n) eqn:E.
  - assert (n < m) by (apply H; auto).
    apply Nat.le_trans with (sum (S n) f); [|apply sum_longer; lia].
    simpl. apply Nat.add_le_mono_r, sum_le. intros i _. destruct (b i); lia.
  - rewrite Nat.add_0_r. apply IH. intros. apply H; auto.
Qed.
