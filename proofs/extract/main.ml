(* Reads one case a line (whitespace-separated integers, the format of amk_core/schedule/dump.py), prints one verdict a line:
   1 the certificate holds, 0 it does not, ? the line cannot be read. *)
open Checker

exception Bad

let rec nat_of n = if n < 0 then raise Bad else grow O n
and grow acc n = if n = 0 then acc else grow (S acc) (n - 1)

let rec pos_of n = if n = 1 then XH else if n land 1 = 0 then XO (pos_of (n lsr 1)) else XI (pos_of (n lsr 1))
let z_of n = if n = 0 then Z0 else if n > 0 then Zpos (pos_of n) else Zneg (pos_of (-n))

let verdict line =
  let rest = ref (List.filter (fun s -> s <> "") (String.split_on_char ' ' line)) in
  let int () = match !rest with [] -> raise Bad | s :: r -> rest := r; (match int_of_string_opt s with Some n -> n | None -> raise Bad) in
  let nat () = nat_of (int ()) in
  let z () = z_of (int ()) in
  let rec times n f = if n < 0 then raise Bad else if n = 0 then [] else let x = f () in x :: times (n - 1) f in
  let list f = let n = int () in times n f in
  let pair f g () = let a = f () in let b = g () in (a, b) in
  let wait () = let c = nat () in let t = nat () in let before = int () <> 0 in ((c, t), before) in
  let access () = let w = int () <> 0 in let spans = list (fun () -> list (pair z z)) in { a_write = w; a_spans = spans } in
  let task () =
    let id = nat () in
    let waits = list wait in
    let signals = list (pair nat nat) in
    let after = list (pair nat nat) in
    let access = list (fun () -> list access) in
    { t_id = id; t_waits = waits; t_signals = signals; t_after = after; t_access = access } in
  let steps = nat () in
  let counters = nat () in
  let assignments = nat () in
  let queues = list (fun () -> list task) in
  let tables = { steps; counters; assignments; task_lists = queues } in
  let c_unroll = z () in
  let c_tasks = z () in
  let c_queues = z () in
  let c_replay = list z in
  let c_row = list z in
  let c_off = list z in
  let c_queue = list z in
  let c_value = list z in
  if !rest <> [] then raise Bad;
  check tables { c_unroll; c_tasks; c_queues; c_replay; c_row; c_off; c_queue; c_value }

let () =
  try
    while true do
      let line = input_line stdin in
      print_endline (match verdict line with true -> "1" | false -> "0" | exception Bad -> "?")
    done
  with End_of_file -> ()
