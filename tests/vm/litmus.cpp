// Litmus tests of the host side of vm/protocol.h: each protocol for many rounds between threads, right and deliberately broken.
// Arguments: name, "right" or "broken", rounds.  Prints "wrong N": the rounds that found a wrong value.  ThreadSanitizer, where it
// is built in, reports races on standard error.  Standard output says nothing else.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "protocol.h"

using namespace amk;

static void add_relaxed(uint32_t* counter, uint32_t n) { std::atomic_ref(*counter).fetch_add(n, std::memory_order_relaxed); }
static uint32_t load_relaxed(uint32_t* p) { return std::atomic_ref(*p).load(std::memory_order_relaxed); }

struct alignas(64) Word {
  uint32_t counter = 0;
};

struct World {
  uint32_t abort = 0, stop_at = kNeverStops;
  Spin spin{&abort, &stop_at, 20'000'000'000};
  std::atomic<int64_t> wrong{0};

  void wait(uint32_t* counter, int64_t needs) {
    int64_t has = 0;
    if (wait_at_least(counter, needs, 0, spin, &has) != kReady) wrong += 1, store_release(&abort, 1);
  }
  void expect(bool ok) {
    if (!ok) wrong.fetch_add(1, std::memory_order_relaxed);
  }
};

static void together(std::vector<std::function<void()>> bodies) {
  std::vector<std::thread> threads;
  for (auto& f : bodies) threads.emplace_back(f);
  for (auto& t : threads) t.join();
}

// A payload is written plainly, the counter released; the reader acquires and reads.  Broken: the signal is relaxed.
static int64_t message(bool broken, int64_t rounds) {
  World w;
  Word data, free;
  std::vector<int64_t> payload(16, 0);
  together({[&] {
              for (int64_t i = 0; i < rounds; ++i) {
                w.wait(&free.counter, i);
                for (auto& x : payload) x = i + 1;
                broken ? add_relaxed(&data.counter, 1) : signal(&data.counter, 1);
              }
            },
            [&] {
              for (int64_t i = 0; i < rounds; ++i) {
                w.wait(&data.counter, i + 1);
                for (const auto& x : payload) w.expect(x == i + 1);
                signal(&free.counter, 1);
              }
            }});
  return w.wrong;
}

// Three producers write parts of one buffer and add to one counter; the consumer waits for all.  Broken: it waits for all but one.
static int64_t producers(bool broken, int64_t rounds) {
  World w;
  Word data, free;
  constexpr int64_t kProducers = 3;
  std::vector<int64_t> payload(kProducers, 0);
  std::vector<std::function<void()>> bodies;
  for (int64_t p = 0; p < kProducers; ++p)
    bodies.push_back([&, p] {
      for (int64_t i = 0; i < rounds; ++i) {
        w.wait(&free.counter, i);
        if (p == i % kProducers) sched_yield();  // one comes late, in turn
        payload[size_t(p)] = i + 1;
        signal(&data.counter, 1);
      }
    });
  bodies.push_back([&] {
    for (int64_t i = 0; i < rounds; ++i) {
      w.wait(&data.counter, threshold(i, 0, kProducers, kProducers - broken));
      for (int64_t x : payload) w.expect(x == i + 1);
      // every producer has signalled this round before the next one may begin, also in the broken variant
      w.wait(&data.counter, threshold(i, 0, kProducers, kProducers));
      signal(&free.counter, 1);
    }
  });
  together(bodies);
  return w.wrong;
}

// Elements that carry their step.  Broken: the reader takes whatever value is there, tag or not.
static int64_t tagged(bool broken, int64_t rounds) {
  World w;
  Word free;
  std::vector<uint64_t> element(8, 0);
  together({[&] {
              for (int64_t i = 0; i < rounds; ++i) {
                w.wait(&free.counter, i);
                for (size_t k = 0; k < element.size(); ++k) store_tagged(&element[k], uint32_t(i * 8 + int64_t(k)), uint32_t(i + 1));
              }
            },
            [&] {
              for (int64_t i = 0; i < rounds; ++i) {
                for (size_t k = 0; k < element.size(); ++k) {
                  uint32_t value = 0, has = 0;
                  if (broken)
                    value = uint32_t(load_tagged(&element[k]));
                  else
                    w.expect(wait_tagged(&element[k], uint32_t(i + 1), 0, w.spin, &value, &has) == kReady);
                  w.expect(value == uint32_t(i * 8 + int64_t(k)));
                }
                signal(&free.counter, 1);
              }
            }});
  return w.wrong;
}

// A tag proves that its element arrived and orders nothing else.  Right: plain bytes beside it have a counter of their own.  Broken:
// the tag is taken for an order of the plain bytes.
static int64_t tag_and_bytes(bool broken, int64_t rounds) {
  World w;
  Word data, free;
  uint64_t element = 0;
  int64_t plain = 0;
  together({[&] {
              for (int64_t i = 0; i < rounds; ++i) {
                w.wait(&free.counter, i);
                plain = i + 1;
                signal(&data.counter, 1);
                store_tagged(&element, uint32_t(i), uint32_t(i + 1));
              }
            },
            [&] {
              for (int64_t i = 0; i < rounds; ++i) {
                uint32_t value = 0, has = 0;
                w.expect(wait_tagged(&element, uint32_t(i + 1), 0, w.spin, &value, &has) == kReady);
                if (!broken) w.wait(&data.counter, i + 1);
                w.expect(plain == i + 1);
                signal(&free.counter, 1);
              }
            }});
  return w.wrong;
}

// One writer overwrites an element that a reader polls for.  Right: it waits for the reader of the tag before.  Broken: it does not, and
// the reader meets a newer tag, which is a fault and never a value.
static int64_t overtaking(bool broken, int64_t rounds) {
  World w;
  Word free;
  uint64_t element = 0;
  std::atomic<bool> met{false};
  together({[&] {
              for (int64_t i = 0; i < rounds; ++i) {
                if (!broken) w.wait(&free.counter, i);
                store_tagged(&element, uint32_t(i * 3), uint32_t(i + 1));
              }
            },
            [&] {
              for (int64_t i = 0; i < rounds && !met; ++i) {
                uint32_t value = 0, has = 0;
                const WaitStatus status = wait_tagged(&element, uint32_t(i + 1), 0, w.spin, &value, &has);
                if (status == kReady) w.expect(value == uint32_t(i * 3));
                if (status == kOvertaken) met = true, w.expect(false);
                signal(&free.counter, 1);
              }
            }});
  return w.wrong;
}

// The sampler decides in some step that there is no next one; a worker waits for the step before and looks.  All stop after the same
// step, and what the sampler wrote before its decision is visible.  Broken: the worker looks without having waited.
static int64_t stop(bool broken, int64_t rounds) {
  World w;
  for (int64_t round = 0; round < rounds / 16 + 1; ++round) {
    const int64_t last = round % 5;
    uint32_t stop_at = kNeverStops, abort = 0;
    const Spin spin{&abort, &stop_at, 20'000'000'000};
    Word sampled, worked;
    int64_t reason = 0, ran = 0;
    together({[&] {
                for (int64_t step = 0; step <= last; ++step) {
                  sched_yield();  // the decision takes a while: time for a worker that does not wait to run ahead
                  if (step == last) reason = last + 1, store_release(&stop_at, uint32_t(step + 1));
                  signal(&sampled.counter, 1);
                }
              },
              [&] {
                for (int64_t step = 0; step < 8; ++step) {
                  int64_t has = 0;
                  if (!broken && wait_at_least(&sampled.counter, threshold(step, -1, 1, 1), step, spin, &has) != kReady) break;
                  if (int64_t(load_acquire(&stop_at)) <= step) break;
                  ++ran;
                  signal(&worked.counter, 1);
                }
                if (!broken) w.expect(reason == last + 1);
              }});
    w.expect(ran == last + 1);
  }
  return w.wrong;
}

// A buffer that is written anew in each step: the writer of step i + 1 waits with e = -1 for the readers of step i.  Broken: it does not.
static int64_t epoch(bool broken, int64_t rounds) {
  World w;
  Word written, read;
  std::vector<int64_t> buffer(8, 0);
  together({[&] {
              for (int64_t step = 0; step < rounds; ++step) {
                if (!broken) w.wait(&read.counter, threshold(step, -1, 2, 2));
                for (auto& x : buffer) x = step;
                signal(&written.counter, 1);
              }
            },
            [&] {
              for (int64_t step = 0; step < rounds; ++step) {
                w.wait(&written.counter, threshold(step, 0, 1, 1));
                for (int64_t x : buffer) w.expect(x == step);
                signal(&read.counter, 2);
              }
            }});
  return w.wrong;
}

// Rows for the host, one a step, behind a sequence number.  Right: published with release after the row is written, a row is never
// written twice.  Broken: the number is published first.
static int64_t host_rows(bool broken, int64_t rounds) {
  World w;
  uint32_t published = 0;
  std::vector<int64_t> rows(size_t(rounds), 0);
  together({[&] {
              for (int64_t step = 0; step < rounds; ++step) {
                if (broken) store_release(&published, uint32_t(step + 1));
                rows[size_t(step)] = step + 1;
                if (!broken) store_release(&published, uint32_t(step + 1));
              }
            },
            [&] {
              for (int64_t step = 0; step < rounds;)
                for (const int64_t ready = int64_t(load_acquire(&published)); step < ready; ++step) w.expect(rows[size_t(step)] == step + 1);
            }});
  return w.wrong;
}

// A launch that is aborted: a waiting queue leaves, and sees what the aborting one wrote.  Broken: it takes the flag for granted without
// acquiring it.
static int64_t abort_flag(bool broken, int64_t rounds) {
  World w;
  for (int64_t round = 0; round < rounds / 16 + 1; ++round) {
    uint32_t abort = 0, stop_at = kNeverStops;
    const Spin spin{&abort, &stop_at, 20'000'000'000};
    Word never;
    int64_t fault = 0;
    together({[&] {
                fault = round + 1;
                store_release(&abort, 1);
              },
              [&] {
                int64_t has = 0;
                if (broken)
                  while (load_relaxed(&abort) == 0) sched_yield();
                else
                  w.expect(wait_at_least(&never.counter, 1, 0, spin, &has) == kAborted);
                w.expect(fault == round + 1);
              }});
  }
  return w.wrong;
}

int main(int argc, char** argv) {
  const std::map<std::string, int64_t (*)(bool, int64_t)> tests{
      {"message", message},     {"producers", producers}, {"tagged", tagged}, {"tag_and_bytes", tag_and_bytes},
      {"overtaking", overtaking}, {"stop", stop},           {"epoch", epoch},   {"host_rows", host_rows},
      {"abort_flag", abort_flag},
  };
  const auto it = argc == 4 ? tests.find(argv[1]) : tests.end();
  if (it == tests.end()) return std::fprintf(stderr, "usage: %s NAME right|broken ROUNDS\n", argv[0]), 2;
  std::printf("wrong %lld\n", static_cast<long long>(it->second(std::strcmp(argv[2], "broken") == 0, std::atoll(argv[3]))));
  return 0;
}
