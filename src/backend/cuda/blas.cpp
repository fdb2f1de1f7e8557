// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/blas.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "backend/cuda/memory.h"
#include "backend/cuda/other_context.h"
#include "backend/cuda/tuning.h"
#include "base/check.h"

namespace wick::cuda {
namespace {

// The functions of the library that are used, by their own names.
struct Api {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetVersion) get_version;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoCheck) check;
  decltype(&cublasLtMatmulDescInit_internal) desc_init;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutInit_internal) layout_init;
  decltype(&cublasLtMatmulPreferenceInit_internal) preference_init;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
};

template <typename F>
bool find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, Api& api) {
  return find(library, "cublasLtCreate", api.create) &&
         find(library, "cublasLtDestroy", api.destroy) &&
         find(library, "cublasLtGetVersion", api.get_version) &&
         find(library, "cublasLtMatmul", api.matmul) &&
         find(library, "cublasLtMatmulAlgoGetHeuristic", api.heuristic) &&
         find(library, "cublasLtMatmulAlgoCheck", api.check) &&
         find(library, "cublasLtMatmulDescInit_internal", api.desc_init) &&
         find(library, "cublasLtMatmulDescSetAttribute", api.desc_set) &&
         find(library, "cublasLtMatrixLayoutInit_internal", api.layout_init) &&
         find(library, "cublasLtMatmulPreferenceInit_internal", api.preference_init) &&
         find(library, "cublasLtMatmulPreferenceSetAttribute", api.preference_set);
}

cudaDataType_t data_type(DType t) {
  return t == DType::kBF16 ? CUDA_R_16BF : t == DType::kF16 ? CUDA_R_16F : CUDA_R_32F;
}

// Everything that the choice of a kernel may depend on.
using Key = std::tuple<int, DType, DType, bool, bool, bool, int64_t, int64_t, int64_t, int64_t,
                       int64_t, int64_t>;

// Lets this thread wait and allocate while it records another stream.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// A stream and a clock for it.
class Stream {
 public:
  Stream() {
    succeed(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream");
    succeed(cudaEventCreate(&begin_), "make an event");
    succeed(cudaEventCreate(&end_), "make an event");
  }
  ~Stream() {
    cudaStreamSynchronize(stream_);
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  void begin() { cudaEventRecord(begin_, stream_); }
  float end() {  // milliseconds since begin()
    float ms = 0;
    cudaEventRecord(end_, stream_);
    succeed(cudaEventSynchronize(end_), "be tuned");
    cudaEventElapsedTime(&ms, begin_, end_);
    return ms;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Launches that can be repeated.
class Graph {
 public:
  // Of what `enqueue` puts on the stream; usable() where it says that it did.
  template <typename F>
  Graph(cudaStream_t stream, F&& enqueue) {
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) != cudaSuccess) return;
    const bool enqueued = enqueue();
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(stream, &graph) == cudaSuccess && enqueued &&
        cudaGraphInstantiate(&graph_, graph, 0) != cudaSuccess)
      graph_ = nullptr;
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
  }
  Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  Graph& operator=(Graph&&) = delete;
  ~Graph() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }
  bool usable() const { return graph_ != nullptr; }
  void launch(cudaStream_t stream) const { succeed(cudaGraphLaunch(graph_, stream), "be tuned"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

// Numbers of 0.03 to 0.5 of both signs, in bf16: what multiplies equal numbers, or zeros, draws
// less power, and so takes less time.
void fill(const DeviceBuffer& buffer, cudaStream_t stream) {
  static const std::vector<uint16_t> numbers = [] {
    std::vector<uint16_t> all(size_t{1} << 18);
    uint32_t state = 1;
    for (uint16_t& x : all) {
      state = state * 1664525u + 1013904223u;
      x = static_cast<uint16_t>(0x3d00 + (state >> 16 & 0x1ff) + (state >> 31 << 15));
    }
    return all;
  }();
  size_t done = std::min(buffer.bytes(), numbers.size() * sizeof numbers[0]);
  succeed(cudaMemcpyAsync(buffer.address(), numbers.data(), done, cudaMemcpyHostToDevice, stream),
          "be tuned");
  for (size_t more = 0; done < buffer.bytes(); done += more) {
    more = std::min(done, buffer.bytes() - done);
    succeed(cudaMemcpyAsync(buffer.address() + done, buffer.address(), more,
                            cudaMemcpyDeviceToDevice, stream),
            "be tuned");
  }
}

class LtBlas final : public Blas {
 public:
  LtBlas(const Api& api, cublasLtHandle_t handle, const std::string& table)
      : api_(api), handle_(handle), table_(table) {}
  ~LtBlas() override {
    settle();
    api_.destroy(handle_);
  }

  void settle() const override {
    std::lock_guard lock(mutex_);
    if (trying_ != nullptr) {
      const OtherContext::Visit visit(apart_.get());
      api_.destroy(trying_);
    }
    trying_ = nullptr;
    apart_ = nullptr;
  }

  std::string version() const override {
    const size_t v = api_.get_version();
    return cat(v / 10000, ".", v / 100 % 100, ".", v % 100);
  }

  // The library counts columns first, so y is its transpose: yᵀ = op(b)ᵀ op(a)ᵀ.
  bool multiply(const Queue& queue, const Product& p, const Operand& a, const Operand& b,
                const Operand& y, const Operand& bias, void* workspace) const override {
    const int64_t m = y.cols, n = y.rows, k = p.trans == Trans::kTN ? a.rows : a.cols;
    cublasLtMatmulDescOpaque_t desc;
    if (api_.desc_init(&desc, sizeof desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS)
      return false;
    const cublasOperation_t first = p.trans == Trans::kNT ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = p.trans == Trans::kTN ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(desc, CUBLASLT_MATMUL_DESC_TRANSA, first);
    set(desc, CUBLASLT_MATMUL_DESC_TRANSB, second);
    if (bias) {
      set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.data));
      set(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(bias.dtype));
    }
    // In f32 an element's bits do not depend on how many rows are beside its own: the kernel is
    // what the library proposes for some rows, and sums are not cut.
    const bool any_rows = a.dtype == DType::kF32 && p.trans != Trans::kTN;
    const int64_t asked = any_rows ? kAskedRows : n;
    cublasLtMatrixLayoutOpaque_t la, lb, ly, lb_asked, ly_asked;
    layout(la, b.dtype, first == CUBLAS_OP_T ? k : m, first == CUBLAS_OP_T ? m : k, b.ld);
    layout(lb, a.dtype, second == CUBLAS_OP_T ? n : k, second == CUBLAS_OP_T ? k : n, a.ld);
    layout(ly, y.dtype, m, n, y.ld);
    layout(lb_asked, a.dtype, second == CUBLAS_OP_T ? asked : k, second == CUBLAS_OP_T ? k : asked,
           a.ld);
    layout(ly_asked, y.dtype, m, asked, y.ld);
    const Key key{static_cast<int>(p.trans),
                  a.dtype,
                  y.dtype,
                  p.accumulate,
                  bool(bias),
                  workspace == nullptr,
                  m,
                  asked,
                  k,
                  a.ld,
                  b.ld,
                  y.ld};
    cublasLtMatmulAlgo_t algo;
    const size_t bytes = workspace == nullptr ? 0 : kWorkspace;
    const float beta = p.accumulate ? 1.0f : 0.0f;
    if (!choose(key, {a, b, y, desc, la, lb_asked, ly_asked, bytes, beta}, algo)) return false;
    return api_.matmul(handle_, &desc, &p.alpha, b.data, &la, a.data, &lb, &beta, y.data, &ly,
                       y.data, &ly, &algo, workspace, bytes, queue.stream) == CUBLAS_STATUS_SUCCESS;
  }

 private:
  template <typename T>
  void set(cublasLtMatmulDescOpaque_t& desc, cublasLtMatmulDescAttributes_t what, T value) const {
    WICK_CHECK(api_.desc_set(&desc, what, &value, sizeof value) == CUBLAS_STATUS_SUCCESS);
  }
  void layout(cublasLtMatrixLayoutOpaque_t& l, DType dtype, int64_t rows, int64_t cols,
              int64_t ld) const {
    WICK_CHECK(api_.layout_init(&l, sizeof l, data_type(dtype), static_cast<uint64_t>(rows),
                                static_cast<uint64_t>(cols), ld) == CUBLAS_STATUS_SUCCESS);
  }
  struct Call {
    const Operand &a, &b, &y;
    cublasLtMatmulDescOpaque_t& desc;
    cublasLtMatrixLayoutOpaque_t &la, &lb, &ly;
    size_t workspace;  // bytes
    float beta;
  };

  bool choose(const Key& key, const Call& call, cublasLtMatmulAlgo_t& algo) const {
    std::lock_guard lock(mutex_);
    if (auto known = chosen_.find(key); known != chosen_.end()) {
      algo = known->second;
      return true;
    }
    const std::string name = key_name(key);
    const bool exact = call.a.dtype == DType::kF32;
    const bool listed = !exact && table_.find(name, &algo, sizeof algo);
    if (!listed || !works(call, algo)) {
      cublasLtMatmulPreferenceOpaque_t preference;
      WICK_CHECK(api_.preference_init(&preference, sizeof preference) == CUBLAS_STATUS_SUCCESS);
      api_.preference_set(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &call.workspace,
                          sizeof call.workspace);
      const uint32_t uncut = CUBLASLT_REDUCTION_SCHEME_NONE;
      if (exact)
        api_.preference_set(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &uncut,
                            sizeof uncut);
      const int64_t products = call.y.rows * call.y.cols * std::get<8>(key);
      const bool tries = table_.usable() && !exact && products >= kFewProducts;
      cublasLtMatmulHeuristicResult_t results[kCandidates];
      int found = 0;
      if (api_.heuristic(handle_, &call.desc, &call.la, &call.lb, &call.ly, &call.ly, &preference,
                         tries ? kCandidates : 1, results, &found) != CUBLAS_STATUS_SUCCESS ||
          found == 0)
        return false;
      algo = results[found > 1 ? fastest(call, {results, static_cast<size_t>(found)}) : 0].algo;
      if (!exact) table_.add(name, &algo, sizeof algo, listed);
    }
    chosen_.emplace(key, algo);
    return true;
  }

  // A table is a file, and so may say anything.
  bool works(const Call& call, const cublasLtMatmulAlgo_t& algo) const {
    cublasLtMatmulHeuristicResult_t result;
    return api_.check(handle_, &call.desc, &call.la, &call.lb, &call.ly, &call.ly, &algo,
                      &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= call.workspace;
  }

  std::string key_name(const Key& key) const {
    return std::apply(
        [this](int trans, DType in, DType out, bool accumulate, bool bias, bool bare,
               auto... sizes) {
          std::string name = cat("cublaslt ", api_.get_version(), " product ", trans, " ",
                                 dtype_name(in), " ", dtype_name(out), accumulate ? " add" : "",
                                 bias ? " bias" : "", bare ? " bare" : "");
          ((name += cat(" ", sizes)), ...);
          return name;
        },
        key);
  }

  // The candidate with the least time, on operands of its own and in a context of its own: the
  // plan's may be in use, and the caller's stream may be recording. As in a step, weights come from
  // memory and launches follow each other in a graph.
  size_t fastest(const Call& call,
                 std::span<const cublasLtMatmulHeuristicResult_t> candidates) const {
    try {
      return measured(call, candidates);
    } catch (const Error&) {  // there is no room for it
      return 0;
    }
  }
  size_t measured(const Call& call,
                  std::span<const cublasLtMatmulHeuristicResult_t> candidates) const {
    RelaxedCapture relaxed;
    if (trying_ == nullptr) {
      apart_ = OtherContext::make();
      const OtherContext::Visit visit(apart_.get());
      if (api_.create(&trying_) != CUBLAS_STATUS_SUCCESS) return 0;
    }
    const OtherContext::Visit visit(apart_.get());
    auto bytes = [](const Operand& o) {
      return static_cast<size_t>((o.rows - 1) * o.ld + o.cols) * dtype_bytes(o.dtype);
    };
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    const size_t step = (bytes(call.b) + 255) / 256 * 256;
    const size_t copies =
        std::clamp<size_t>(std::min(kColdBytes, free / 4) / step, 1, size_t{kMostRuns});
    Stream stream;
    const DeviceBuffer a(bytes(call.a), stream.get()), b(copies * step, stream.get()),
        y(bytes(call.y), stream.get()), workspace(kWorkspace, stream.get());
    fill(a, stream.get());
    fill(b, stream.get());
    auto multiply = [&](size_t i, int run) {
      const float one = 1.0f;
      return api_.matmul(trying_, &call.desc, &one,
                         b.address() + static_cast<size_t>(run) % copies * step, &call.la,
                         a.address(), &call.lb, &call.beta, y.address(), &call.ly, y.address(),
                         &call.ly, &candidates[i].algo, workspace.address(), kWorkspace,
                         stream.get()) == CUBLAS_STATUS_SUCCESS;
    };
    struct Trial {
      size_t candidate;
      Graph graph;
      float more, least = INFINITY;
    };
    std::vector<Trial> trials;
    int runs = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (!multiply(i, 0)) continue;  // which also loads it
      if (runs == 0) {
        stream.begin();
        multiply(i, 1);
        runs = std::clamp(static_cast<int>(kTrial / stream.end()), 2, kMostRuns);
      }
      Graph graph(stream.get(), [&] {
        bool all = true;
        for (int run = 0; run < runs; ++run) all = multiply(i, run) && all;
        return all;
      });
      const float more = candidates[i].workspaceSize > 0 ? kMore * static_cast<float>(runs) : 0.0f;
      if (graph.usable()) trials.push_back({i, std::move(graph), more});
    }
    float least = INFINITY;
    for (int round = 0; round < kRounds; ++round)
      for (Trial& trial : trials) {
        if (round > 1 && trial.least > kHopeless * least) continue;
        stream.begin();
        trial.graph.launch(stream.get());
        const float took = stream.end() + trial.more;
        if (round > 0) trial.least = std::min(trial.least, took);
        least = std::min(least, trial.least);
      }
    // Of those that are nearly as fast the first, so that noise seldom decides.
    for (const Trial& trial : trials)
      if (trial.least <= kAsGood * least) return trial.candidate;
    return 0;
  }

  static constexpr int64_t kAskedRows = 512;
  static constexpr int64_t kFewProducts = int64_t{1} << 25;  // fewer are not tried
  static constexpr int kCandidates = 40, kRounds = 8, kMostRuns = 16;
  static constexpr size_t kColdBytes = size_t{160} << 20;  // more than any cache
  static constexpr float kTrial = 0.2f;                    // milliseconds of launches in a graph
  // What uses workspace is two launches; between other kernels both cost more than in a row.
  static constexpr float kMore = 0.002f;
  static constexpr float kHopeless = 1.1f, kAsGood = 1.005f;

  Api api_;
  cublasLtHandle_t handle_;
  mutable std::unique_ptr<OtherContext> apart_;  // where kernels are tried; null: here
  mutable cublasLtHandle_t trying_ = nullptr;
  mutable std::mutex mutex_;
  mutable std::map<Key, cublasLtMatmulAlgo_t> chosen_;
  mutable TuningTable table_;
};

}  // namespace

std::unique_ptr<Blas> Blas::open(const std::string& table, std::string& problem) {
  // The library of the tool kit that these headers are of; others have other structures.
  const std::string name = cat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    problem = cat(name, " was not found; add its folder to LD_LIBRARY_PATH");
    return nullptr;
  }
  Api api{};
  cublasLtHandle_t handle = nullptr;
  if (!find_all(library, api)) {
    problem = cat(name, " lacks a function");
    return nullptr;
  }
  if (api.create(&handle) != CUBLAS_STATUS_SUCCESS) {
    problem = cat(name, " did not start");
    return nullptr;
  }
  return std::make_unique<LtBlas>(api, handle, table);
}

}  // namespace wick::cuda
