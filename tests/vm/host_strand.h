// A stack of its own that runs until it hands over to another: setjmp and longjmp, because swapcontext asks the system for the
// signal mask at every switch.
#pragma once
#undef _FORTIFY_SOURCE  // its longjmp refuses to leave one stack for another
#include <setjmp.h>
#include <stddef.h>
#include <ucontext.h>

struct Strand {
  jmp_buf at;
  ucontext_t first;  // where it begins, until it has begun
  bool begun = true;  // whoever is running already

  void prepare(void* stack, size_t bytes, void (*body)()) {
    getcontext(&first);
    first.uc_stack.ss_sp = stack, first.uc_stack.ss_size = bytes, first.uc_link = nullptr;  // `body` never returns
    makecontext(&first, body, 0);
    begun = false;
  }
  // From the strand that runs to this one, until somebody hands back.
  void take_over(Strand& from) {
    if (_setjmp(from.at)) return;
    if (begun) _longjmp(at, 1);
    begun = true;
    setcontext(&first);
  }
};
