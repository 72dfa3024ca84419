(** The theorems that docs/validator.md names.  `make` fails unless each of them is closed under the global context. *)

From AMK Require Semantics MustOrder Exact Events Loop OneStep Periodic PeriodicComplete Determinism Tag TaggedDeterminism Sweep
  Stop CheckerSound.

(* Deadlock *)
Print Assumptions Semantics.dominance.
Print Assumptions Semantics.greedy_decides.
Print Assumptions Semantics.deadlock_free_dec.
Print Assumptions OneStep.one_step_suffices.
Print Assumptions OneStep.one_step_exact.

(* Must-order and races *)
Print Assumptions MustOrder.join_closed.
Print Assumptions MustOrder.must_trans.
Print Assumptions MustOrder.certificate_sound.
Print Assumptions MustOrder.weaker_must.
Print Assumptions Exact.exact_clocks_exist.
Print Assumptions Exact.must_dec.
Print Assumptions Exact.race_iff.
Print Assumptions Exact.witness.
Print Assumptions Exact.certificate_complete.
Print Assumptions Exact.certified_iff_must.
Print Assumptions Exact.exact_is_greatest.
Print Assumptions Events.overlap_iff_coenabled.

(* Every number of steps, without unrolling *)
Print Assumptions Periodic.periodic_clocks_sound.
Print Assumptions Periodic.periodic_sound.
Print Assumptions Periodic.loop_must_later.
Print Assumptions PeriodicComplete.exact_periodic_clocks_exist.
Print Assumptions PeriodicComplete.periodic_complete.
Print Assumptions PeriodicComplete.exact_is_greatest.
Print Assumptions PeriodicComplete.greatest_is_complete.
Print Assumptions PeriodicComplete.lowering_is_safe.

(* Loops that stop early, launches that continue *)
Print Assumptions Stop.stop_is_a_cut.
Print Assumptions Stop.stop_is_complete.
Print Assumptions Stop.continued_launch.

(* Tagged elements *)
Print Assumptions Tag.no_newer_tag.
Print Assumptions Tag.not_lost.
Print Assumptions Tag.returns_its_epoch.
Print Assumptions Tag.tagged_progress.
Print Assumptions TaggedDeterminism.tagged_every_run_reaches_the_end.
Print Assumptions TaggedDeterminism.tagged_deterministic.

(* Neighbours in a byte's accesses *)
Print Assumptions Sweep.sweep_sufficient.
Print Assumptions Sweep.two_rounds_suffice.
Print Assumptions Sweep.second_round_may_stop.
Print Assumptions Sweep.loop_sweep_sufficient.

(* What a race-free schedule computes *)
Print Assumptions Determinism.every_run_reaches_the_end.
Print Assumptions Determinism.deterministic.
Print Assumptions Determinism.ordered_is_race_free.

(* The checker that is extracted *)
Print Assumptions CheckerSound.replay_decides.
Print Assumptions CheckerSound.live_waits_for_writers.
Print Assumptions CheckerSound.checker_sound.
Print Assumptions CheckerSound.checked_is_deterministic.
