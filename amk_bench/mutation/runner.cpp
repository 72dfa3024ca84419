// Tries mutants of the validator or of the checker on a corpus; each in a process of its own, which may crash or hang.
// Arguments: corpus, numbers of mutants with commas between them.  Prints one line a mutant: its number, how it died or "lives", and
// the case that showed it (-1: none).
//   verdict   another verdict, or other rules, than the corpus says
//   proof     an accepted schedule whose certificate does not hold (validator only)
//   undecided cannot decide what the code as written refuses for good (validator only)
//   limit     accepts what the code as written refuses beyond one of its limits, although it would hold
//   report    the same verdict, but other findings or another certificate than the code as written gives
//   crash, hang
// The corpus: int64 words; per case its length in words, what is expected, then the tables and, for the checker, a certificate.
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "amk_mutants.hpp"
#include "checker.hpp"
#if AMK_VALIDATOR
#include "validate.hpp"
#endif

int amk_mutant = 0;
int amk_limits = 0;
char* amk_seen = nullptr;

namespace {

constexpr double kSlowest = 0.1;             // seconds of processor time that the code as written may take for one case
constexpr suseconds_t kMicroseconds = 300'000;  // of a mutant for one case
constexpr rlim_t kSeconds = 120;             // of a mutant for all cases
constexpr size_t kMutants = 1 << 16;         // numbers are smaller
constexpr rlim_t kBytes = rlim_t{3} << 29;

struct Case {
  int64_t accept = 0, rules = -1;  // rules: bits that must agree, -1: only the verdict is known
  int64_t kept = 0;                // mask of bits that are compared
  int limits = 0;                  // setting of the limits
  std::vector<uint64_t> words;
  std::optional<amk::Tables> tables;  // none: they cannot be read
  std::vector<int64_t> numbers;  // unroll, n_tasks, n_queues
  std::vector<int32_t> replay, row, row_queue, row_value;
  std::vector<int64_t> row_off;
  std::string error, report;  // why the tables cannot be read; what the code as written says
  bool limit = false;     // it holds, but the code as written refuses it
  bool definite = false;  // refused by the code as written for something that is wrong for sure
};

struct Reader {
  const std::vector<int64_t>& words;
  size_t at = 0;
  int64_t next() { return words.at(at++); }
  template <class T>
  std::vector<T> list() {
    std::vector<T> out(static_cast<size_t>(next()));
    for (auto& x : out) x = T(next());
    return out;
  }
};

std::vector<Case> read_corpus(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string raw{std::istreambuf_iterator<char>(file), {}};
  std::vector<int64_t> words(raw.size() / 8);
  std::memcpy(words.data(), raw.data(), words.size() * 8);
  std::vector<Case> out;
  for (Reader in{words}; in.at < words.size();) {
    Case c;
    c.accept = in.next(), c.rules = in.next(), c.kept = in.next(), c.limits = int(in.next());
    const size_t bytes = size_t(in.next());
    c.words.resize((bytes + 7) / 8);
    for (auto& x : c.words) x = uint64_t(in.next());
    try {
      c.tables.emplace(std::string_view(reinterpret_cast<const char*>(c.words.data()), bytes));
    } catch (const amk::TableError& e) {
      c.error = e.what();
    }
    c.numbers = in.list<int64_t>();
    c.replay = in.list<int32_t>(), c.row = in.list<int32_t>(), c.row_off = in.list<int64_t>();
    c.row_queue = in.list<int32_t>(), c.row_value = in.list<int32_t>();
    out.push_back(std::move(c));
  }
  return out;
}

enum Death { kLives, kVerdict, kProof, kReport, kLimit, kUndecided };
constexpr const char* kNames[] = {"lives", "verdict", "proof", "report", "limit", "undecided"};

#if AMK_VALIDATOR
Death judge(Case& c, bool learn) {
  using namespace amk;
  Death worst = kLives;
  std::string text;
  amk_limits = c.limits;
  if (c.tables) {
    const Tables& t = *c.tables;
    validate::Verdict v = validate::decide(t);
    const bool definite = std::any_of(v.report.findings.begin(), v.report.findings.end(), [](const auto& f) { return !f.undecided; });
    if (c.accept ? definite : v.accepted) return kVerdict;
    if (learn) c.limit = c.accept && !v.accepted, c.definite = definite;
    if (c.limit && v.accepted) worst = kLimit;
    if (c.accept && !c.limit && !v.accepted) return kVerdict;
    if (c.definite && !definite) return kUndecided;
    int64_t bits = 0;
    for (int r = 0; r < validate::kRules; ++r) {
      if (v.report.count[r]) bits |= int64_t{1} << r;
      text += std::to_string(v.report.count[r]) + ",";
    }
    if (learn && c.limits && (bits & c.kept) != c.rules) c.rules = -1;  // beyond a limit other rules may be undecided
    if (c.rules >= 0 && (bits & c.kept) != c.rules) return kVerdict;
    for (const auto& f : v.report.findings) {
      text += f.what + (f.undecided ? "?" : "");
      for (int64_t x : {f.task_a, f.task_b, f.step_a, f.step_b, f.buffer, f.lo, f.hi, f.counter, f.need, f.have}) text += " " + std::to_string(x);
      for (int64_t x : f.chain) text += " " + std::to_string(x);
    }
    for (const auto& [k, done] : v.witness)
      for (int64_t x : done) text += " " + std::to_string(k) + ":" + std::to_string(x);
    if (v.accepted) {
      const validate::Sparse s = validate::sparse(v.clocks);
      const std::vector<int32_t> order(v.run.order.begin(), v.run.order.end());
      const CertificateView z{v.clocks.unroll, t.n_tasks, t.n_queues, order, s.row, s.off, s.queue, s.value};
      if (!check_certificate(t, z).empty()) return kProof;
      for (int32_t x : s.value) text += " " + std::to_string(x);
    }
  } else if (text = c.error; c.accept) {
    return kVerdict;
  }
  if (learn)
    c.report = text;
  else if (worst == kLives && c.report != text)
    worst = kReport;
  return worst;
}
#else
Death judge(Case& c, bool learn) {
  using namespace amk;
  std::string text;
  if (c.tables) {
    const Tables& t = *c.tables;
    const CertificateView z{c.numbers[0], c.numbers[1], c.numbers[2], c.replay, c.row, c.row_off, c.row_queue, c.row_value};
    for (const auto& e : check_certificate(t, z)) text += e + "\n";
  } else {
    text = c.error;
  }
  if (learn && c.accept && !text.empty()) c.limit = true;  // stricter than it would have to be: that is its verdict
  if (text.empty() != (c.accept != 0 && !c.limit)) return c.limit ? kLimit : kVerdict;
  if (learn)
    c.report = text;
  else if (c.report != text)
    return kReport;
  return kLives;
}
#endif

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: %s CORPUS NUMBERS\n", argv[0]), 2;
  mallopt(M_MMAP_THRESHOLD, 1 << 28), mallopt(M_TRIM_THRESHOLD, 1 << 30);  // no page faults for what the next case needs again
  std::vector<Case> corpus = read_corpus(argv[1]);
  std::vector<size_t> numbers;
  std::stringstream list(argv[2]);
  for (std::string number; std::getline(list, number, ',');) numbers.push_back(std::stoul(number));
  std::vector<char> seen(kMutants);
  std::vector<std::vector<bool>> differs(numbers.size(), std::vector<bool>(corpus.size()));  // a mutant may make a difference to a case
  amk_seen = seen.data();
  int wrong = 0;
  for (size_t k = 0; k < corpus.size(); ++k) {
    const std::clock_t start = std::clock();
    std::fill(seen.begin(), seen.end(), 0);
    const Death d = judge(corpus[k], true);
    for (size_t n = 0; n < numbers.size(); ++n) differs[n][k] = seen[numbers[n]];
    if (d != kLives) ++wrong, std::printf("case %zu (limits %d) is judged otherwise by the code as written: %s\n", k, corpus[k].limits, kNames[d]);
    if (double(std::clock() - start) / CLOCKS_PER_SEC > kSlowest) ++wrong, std::printf("case %zu (limits %d) takes too long\n", k, corpus[k].limits);
  }
  if (wrong) return 1;
  amk_seen = nullptr;
  void* shared = mmap(nullptr, sizeof(size_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 2;
  volatile size_t& trying = *static_cast<size_t*>(shared);  // the case that a mutant which crashes or hangs was at
  std::vector<size_t> order(corpus.size());
  for (size_t k = 0; k < order.size(); ++k) order[k] = k;
  for (size_t n = 0; n < numbers.size(); ++n) {
    if (std::find(differs[n].begin(), differs[n].end(), true) == differs[n].end()) {
      std::printf("%zu lives -1\n", numbers[n]);
      continue;
    }
    int result[2];
    if (pipe(result)) return 2;
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      close(result[0]);
      rlimit cpu{kSeconds, kSeconds + 1}, memory{kBytes, kBytes};
      setrlimit(RLIMIT_CPU, &cpu), setrlimit(RLIMIT_AS, &memory);
      rlimit core{0, 0};
      setrlimit(RLIMIT_CORE, &core);
      if (!std::freopen("/dev/null", "w", stderr)) _exit(3);  // what a dying mutant says is of no use
      amk_mutant = int(numbers[n]);
      int64_t answer[2] = {kLives, -1};
      for (size_t k = 0; k < order.size(); ++k) {
        if (!differs[n][order[k]]) continue;
        trying = k;
        const itimerval timer{{0, 0}, {0, kMicroseconds}};
        setitimer(ITIMER_PROF, &timer, nullptr);
        const Death d = judge(corpus[order[k]], false);
        if (d == kLives || (d == kReport && answer[0] == kReport)) continue;
        answer[0] = d, answer[1] = int64_t(k);
        if (d != kReport) break;
      }
      if (write(result[1], answer, sizeof answer) != sizeof answer) _exit(3);
      _exit(0);
    }
    close(result[1]);
    int64_t answer[2] = {kLives, -1};
    const bool told = read(result[0], answer, sizeof answer) == sizeof answer;
    close(result[0]);
    int status = 0;
    waitpid(child, &status, 0);
    const int by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    const char* how = told ? kNames[answer[0]] : by == SIGPROF || by == SIGXCPU || by == SIGKILL ? "hang" : "crash";
    if (!told) answer[0] = kVerdict, answer[1] = int64_t(trying);
    std::printf("%zu %s %lld\n", numbers[n], how, answer[1] >= 0 ? (long long)order[size_t(answer[1])] : -1LL);
    if (answer[0] != kReport && answer[1] > 0)
      std::rotate(order.begin() + answer[1] / 2, order.begin() + answer[1], order.begin() + answer[1] + 1);
  }
  return 0;
}
