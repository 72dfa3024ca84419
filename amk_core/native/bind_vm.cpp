// Python face of the CPU VM: arguments in, plain values out; names and meta are read from the tables themselves.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdlib>

#include "cpu_vm.hpp"
#include "numerics.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace amk {
namespace {

using AnyArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using ByteArray = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ByteArrayRo = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntArray = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatArray = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const Kernels* choose_kernels(const std::optional<std::string>& wanted) {
  const char* from_env = std::getenv("AMK_ISA");
  const std::string name = wanted ? *wanted : (from_env ? from_env : "");
  const std::vector<const Kernels*> available = available_kernels();
  if (name.empty() || name == "auto") return available.front();
  std::string names;
  for (const Kernels* k : available) {
    if (name == k->name) return k;
    names += std::string(names.empty() ? "" : ", ") + k->name;
  }
  throw LoadError("instruction set " + name + " is not available here; AMK_ISA may be auto, " + names);
}

// A program with the Python objects that own its memory.
class PyProgram {
 public:
  PyProgram(nb::bytes tables, IntArray task_weight, ByteArrayRo tape, const std::string& tape_dtype, nb::dict bound, nb::dict pools,
            std::optional<std::string> isa)
      : keep_(nb::make_tuple(tape, bound, pools)) {
    const std::string_view text(tables.c_str(), tables.size());
    std::vector<uint64_t> words;
    const Tables view(aligned(text, words));
    names_ = nb::cast<nb::dict>(nb::module_::import_("json").attr("loads")(nb::str(view.names.data(), view.names.size())));
    size_t i = 0;
    for (nb::handle b : names_["buffers"]) buffer_index_[nb::cast<std::string>(b[0])] = int64_t(i++);
    i = 0;
    for (nb::handle p : names_["pools"]) pool_index_[nb::cast<std::string>(p)] = int64_t(i++);
    if (buffer_index_.size() != view.buffers.size() || pool_index_.size() != view.pools.size())
      throw LoadError("tables: names of buffers or pools are missing or not unique");

    Setup setup;
    setup.tables = text;
    setup.task_weight = {task_weight.data(), task_weight.shape(0)};
    setup.tape = {const_cast<uint8_t*>(tape.data()), int64_t(tape.shape(0))};
    if (tape_dtype != "f32" && tape_dtype != "bf16") throw LoadError("tape dtype is " + tape_dtype + ", required is f32 or bf16");
    setup.tape_bf16 = tape_dtype == "bf16";
    const std::string mode = nb::cast<std::string>(nb::cast<nb::dict>(names_["meta"]).attr("get")("mode", "exact"));
    if (mode != "exact" && mode != "fast") throw LoadError("tables: meta mode is " + mode + ", required is exact or fast");
    setup.fast = mode == "fast";
    setup.kernels = choose_kernels(isa);
    for (auto [key, value] : bound) {
      const AnyArray a = nb::cast<AnyArray>(value);
      setup.bound[find(buffer_index_, "buffer", nb::cast<std::string>(key))] = {
          static_cast<uint8_t*>(const_cast<void*>(a.data())), int64_t(a.nbytes())};
    }
    for (auto [key, value] : pools) {
      const ByteArray a = nb::cast<ByteArray>(value);
      setup.pools[find(pool_index_, "pool", nb::cast<std::string>(key))] = {a.data(), int64_t(a.shape(0))};
    }
    program_ = std::make_unique<Program>(setup);
  }

  ~PyProgram() {
    nb::gil_scoped_release release;
    program_.reset();
  }

  void launch(int64_t steps, std::vector<int64_t> variables, double spin_timeout_s, std::optional<uint64_t> perturb_seed, bool poison) {
    LaunchOptions o{steps, std::move(variables), spin_timeout_s, perturb_seed.has_value(), perturb_seed.value_or(0), poison};
    if (!(spin_timeout_s > 0)) throw LoadError("spin_timeout_s must be greater than 0");
    program_->launch(o);  // short; the GIL keeps a second caller out
  }

  nb::dict wait() {
    constexpr int64_t kSignalCheckMs = 50;  // how long Ctrl-C may go unnoticed
    for (;;) {
      bool over;
      {
        nb::gil_scoped_release release;
        over = program_->wait_for(kSignalCheckMs);
      }
      if (over) return describe(program_->outcome());
      if (PyErr_CheckSignals() != 0) {
        program_->abort();
        {
          nb::gil_scoped_release release;
          program_->wait_for(-1);
        }
        throw nb::python_error();
      }
    }
  }

  // Waits until at least `steps` are published, the launch has ended, or the time is over; returns the published steps.
  int64_t poll(int64_t steps, double timeout_s) {
    nb::gil_scoped_release release;
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
    while (program_->published() < steps && program_->running() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    return program_->published();
  }

  nb::dict run_task(int64_t task, int64_t step, std::vector<int64_t> variables) {
    return describe(program_->run_task(task, step, variables));  // the GIL keeps a second caller out of the scratch memory
  }

  nb::object buffer(const std::string& name) {
    const int64_t index = find(buffer_index_, "buffer", name);
    return view(program_->buffer(index));
  }

  nb::object pool(const std::string& name) { return view(program_->pool(find(pool_index_, "pool", name))); }

  void abort() { program_->abort(); }
  bool running() const { return program_->running(); }
  std::string isa() const { return program_->kernels().name; }
  nb::dict names() const { return names_; }
  static nb::dict describe(const Outcome& o) {
    nb::dict out;
    out["steps"] = o.steps, out["stopped"] = o.stopped, out["aborted"] = o.aborted;
    if (o.fault.kind == kNoFault) {
      out["fault"] = nb::none();
      return out;
    }
    nb::dict f;
    f["kind"] = o.fault.kind == kSpinTimeout ? "spin-timeout" : "token-range";
    f["task"] = o.fault.task, f["op"] = o.fault.op, f["queue"] = o.fault.queue, f["position"] = o.fault.position;
    f["counter"] = o.fault.counter, f["step"] = o.fault.step, f["row"] = o.fault.row;
    f["has"] = o.fault.has, f["needs"] = o.fault.needs;
    out["fault"] = f;
    return out;
  }

 private:
  static int64_t find(const std::map<std::string, int64_t>& index, const char* what, const std::string& name) {
    auto it = index.find(name);
    if (it == index.end()) throw LoadError(std::string("the tables have no ") + what + " " + name);
    return it->second;
  }

  // Bytes as a numpy array that keeps this program alive.
  nb::object view(Bytes b) {
    if (!b.data) throw LoadError("a weight lives in the tape, it has no buffer of its own");
    return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(b.data, {size_t(b.size)}, nb::find(this)));
  }

  nb::object keep_;
  nb::dict names_;
  std::map<std::string, int64_t> buffer_index_, pool_index_;
  std::unique_ptr<Program> program_;
};

nb::object map_floats(const FloatArray& x, void (*f)(const float*, int64_t, float*)) {
  const size_t n = x.shape(0);
  float* out = new float[n];
  nb::capsule owner(out, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  f(x.data(), int64_t(n), out);
  return nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<1>>(out, {n}, owner));
}

}  // namespace

void bind_vm(nb::module_& m) {
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const LoadError& e) {
      PyErr_SetString(PyExc_ValueError, e.what());
    } catch (const TableError& e) {
      PyErr_SetString(PyExc_ValueError, e.what());
    }
  });
  nb::class_<PyProgram>(m, "CpuProgram")
      .def(nb::init<nb::bytes, IntArray, ByteArrayRo, const std::string&, nb::dict, nb::dict, std::optional<std::string>>(), "tables"_a,
           "task_weight"_a, "tape"_a, "tape_dtype"_a, "bound"_a, "pools"_a, "isa"_a = nb::none())
      .def("launch", &PyProgram::launch, "steps"_a, "variables"_a, "spin_timeout_s"_a, "perturb_seed"_a = nb::none(), "poison"_a = false)
      .def("wait", &PyProgram::wait)
      .def("poll", &PyProgram::poll, "steps"_a = 0, "timeout_s"_a = 0.0)
      .def("abort", &PyProgram::abort)
      .def("run_task", &PyProgram::run_task, "task"_a, "step"_a, "variables"_a)
      .def("buffer", &PyProgram::buffer, "name"_a)
      .def("pool", &PyProgram::pool, "name"_a)
      .def_prop_ro("running", &PyProgram::running)
      .def_prop_ro("isa", &PyProgram::isa)
      .def_prop_ro("names", &PyProgram::names);
  m.def("cpu_isas", [] {
    nb::list out;
    for (const Kernels* k : available_kernels()) out.append(k->name);
    return out;
  });
  // Elementary functions of the numeric plan, for tests and documentation.
  m.def("exp_f32", [](const FloatArray& x, std::optional<std::string> isa) { return map_floats(x, choose_kernels(isa)->exp_all); },
        "x"_a, "isa"_a = nb::none());
  m.def("log_f32", [](const FloatArray& x) {
    return map_floats(x, [](const float* a, int64_t n, float* b) {
      for (int64_t i = 0; i < n; ++i) b[i] = log_f32(a[i]);
    });
  }, "x"_a);
  m.def("round_bf16", [](const FloatArray& x) {
    return map_floats(x, [](const float* a, int64_t n, float* b) {
      for (int64_t i = 0; i < n; ++i) b[i] = round_bf16(a[i]);
    });
  }, "x"_a);
  m.def("philox", [](std::vector<uint32_t> counter, std::vector<uint32_t> key) {
    if (counter.size() != 4 || key.size() != 2) throw LoadError("philox takes four counter words and two key words");
    std::vector<uint32_t> out(4);
    philox_4x32(counter.data(), key.data(), out.data());
    return out;
  }, "counter"_a, "key"_a);
}

}  // namespace amk
