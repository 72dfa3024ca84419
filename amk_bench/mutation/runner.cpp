// Tries every mutant of the validator or of the checker on a corpus; each in a process of its own, which may crash or hang.
// Arguments: corpus, first mutant, last mutant, stride.  Prints one line a mutant: its number and how it died, or "lives".
//   verdict   another verdict, or other rules, than the corpus says
//   proof     an accepted schedule whose certificate does not hold (validator only)
//   limit     accepts what the code as written refuses beyond one of its limits, although it would hold (checker only)
//   report    the same verdict, but other findings or another certificate than the code as written gives
//   crash, hang
// The corpus: int64 words; per case its length in words, what is expected, then the tables and, for the checker, a certificate.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "checker.hpp"
#if AMK_VALIDATOR
#include "validate.hpp"
#endif

extern "C" {
extern int amk_mutant;
int amk_mutant = 0;
}

namespace {

constexpr rlim_t kSeconds = 2;               // processor time of one mutant on all cases, ten times what the code as written takes
constexpr rlim_t kBytes = rlim_t{3} << 30;

struct Case {
  int64_t accept = 0, rules = -1;  // rules: bits that must agree, -1: only the verdict is known
  int64_t kept = 0;                // mask of bits that are compared
  std::vector<uint64_t> tables;
  size_t bytes = 0;
  std::vector<int64_t> numbers;  // unroll, n_tasks, n_queues
  std::vector<int32_t> replay, row, row_queue, row_value;
  std::vector<int64_t> row_off;
  std::string report;  // of the code as written
  bool limit = false;  // it holds, but the code as written refuses it

  std::string_view view() const { return {reinterpret_cast<const char*>(tables.data()), bytes}; }
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
    c.accept = in.next(), c.rules = in.next(), c.kept = in.next(), c.bytes = size_t(in.next());
    c.tables.resize((c.bytes + 7) / 8);
    for (auto& x : c.tables) x = uint64_t(in.next());
    c.numbers = in.list<int64_t>();
    c.replay = in.list<int32_t>(), c.row = in.list<int32_t>(), c.row_off = in.list<int64_t>();
    c.row_queue = in.list<int32_t>(), c.row_value = in.list<int32_t>();
    out.push_back(std::move(c));
  }
  return out;
}

enum Death { kLives, kVerdict, kProof, kReport, kLimit };
constexpr const char* kNames[] = {"lives", "verdict", "proof", "report", "limit"};

#if AMK_VALIDATOR
Death judge(Case& c, bool learn) {
  using namespace amk;
  Death worst = kLives;
  std::string text;
  try {
    const Tables t(c.view());
    validate::Verdict v = validate::decide(t);
    if (v.accepted != (c.accept != 0)) return kVerdict;
    int64_t bits = 0;
    for (int r = 0; r < validate::kRules; ++r) {
      if (v.report.count[r]) bits |= int64_t{1} << r;
      text += std::to_string(v.report.count[r]) + ",";
    }
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
  } catch (const TableError& e) {
    text = e.what();
    if (c.accept) return kVerdict;
  }
  if (learn)
    c.report = text;
  else if (c.report != text)
    worst = kReport;
  return worst;
}
#else
Death judge(Case& c, bool learn) {
  using namespace amk;
  std::string text;
  try {
    const Tables t(c.view());
    const CertificateView z{c.numbers[0], c.numbers[1], c.numbers[2], c.replay, c.row, c.row_off, c.row_queue, c.row_value};
    for (const auto& e : check_certificate(t, z)) text += e + "\n";
  } catch (const TableError& e) {
    text = e.what();
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
  if (argc != 5) return std::fprintf(stderr, "usage: %s CORPUS FIRST LAST STRIDE\n", argv[0]), 2;
  std::vector<Case> corpus = read_corpus(argv[1]);
  for (size_t k = 0; k < corpus.size(); ++k)
    if (judge(corpus[k], true) != kLives) return std::printf("case %zu is judged otherwise by the code as written\n", k), 1;
  std::vector<size_t> order(corpus.size());
  for (size_t k = 0; k < order.size(); ++k) order[k] = k;
  for (int m = std::atoi(argv[2]); m <= std::atoi(argv[3]); m += std::atoi(argv[4])) {
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
      amk_mutant = m;
      int64_t answer[2] = {kLives, -1};
      for (size_t k = 0; k < order.size(); ++k) {
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
    const char* how = told ? kNames[answer[0]] : WIFSIGNALED(status) && (WTERMSIG(status) == SIGXCPU || WTERMSIG(status) == SIGKILL) ? "hang" : "crash";
    std::printf("%d %s\n", m, how);
    if (told && answer[1] > 0) std::rotate(order.begin() + answer[1] / 2, order.begin() + answer[1], order.begin() + answer[1] + 1);
  }
  return 0;
}
