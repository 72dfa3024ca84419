(** The checker in OCaml.  Only booleans, pairs, lists and options are mapped to OCaml's; numbers stay Coq's own. *)
From Coq Require Extraction ExtrOcamlBasic.
From AMK Require Import Checker.
Extraction Language OCaml.
Extraction "checker.ml" check Tables Certificate.
