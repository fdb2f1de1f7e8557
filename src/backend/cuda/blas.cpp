// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/blas.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "backend/cuda/memory.h"
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

class LtBlas final : public Blas {
 public:
  LtBlas(const Api& api, cublasLtHandle_t handle, const std::string& table)
      : api_(api), handle_(handle), table_(table) {}
  ~LtBlas() override { api_.destroy(handle_); }

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
    if (!choose(key, {a, b, y, desc, la, lb_asked, ly_asked, bytes}, algo)) return false;
    const float beta = p.accumulate ? 1.0f : 0.0f;
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
      cublasLtMatmulHeuristicResult_t results[kCandidates];
      int found = 0;
      if (api_.heuristic(handle_, &call.desc, &call.la, &call.lb, &call.ly, &call.ly, &preference,
                         table_.usable() && !exact ? kCandidates : 1, results,
                         &found) != CUBLAS_STATUS_SUCCESS ||
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

  // The candidate with the least time, on operands of its own: the plan's may be in use, and the
  // caller's stream may be recording.
  size_t fastest(const Call& call,
                 std::span<const cublasLtMatmulHeuristicResult_t> candidates) const {
    RelaxedCapture relaxed;
    auto bytes = [](const Operand& o) {
      return static_cast<size_t>((o.rows - 1) * o.ld + o.cols) * dtype_bytes(o.dtype);
    };
    Stream stream;
    const DeviceBuffer a(bytes(call.a), stream.get()), b(bytes(call.b), stream.get()),
        y(bytes(call.y), stream.get()), workspace(kWorkspace, stream.get());
    // Small numbers of every sign: products of zeros take less power, and so less time.
    for (const DeviceBuffer* buffer : {&a, &b})
      succeed(cudaMemsetAsync(buffer->address(), 0x3d, buffer->bytes(), stream.get()), "be tuned");
    const float one = 1.0f, zero = 0.0f;
    size_t best = 0;
    float least = INFINITY;
    for (size_t i = 0; i < candidates.size(); ++i) {
      float ms = INFINITY;
      for (int round = 0; round < kRounds; ++round) {
        stream.begin();
        for (int run = 0; run < kRuns; ++run)
          if (api_.matmul(handle_, &call.desc, &one, b.address(), &call.la, a.address(), &call.lb,
                          &zero, y.address(), &call.ly, y.address(), &call.ly, &candidates[i].algo,
                          workspace.address(), kWorkspace, stream.get()) != CUBLAS_STATUS_SUCCESS)
            round = kRounds;
        const float took = stream.end();
        if (round > 0 && round < kRounds) ms = std::min(ms, took);
      }
      // A later candidate must be clearly better, so that noise seldom decides.
      if (ms < 0.98f * least) {
        least = ms;
        best = i;
      }
    }
    return best;
  }

  static constexpr int64_t kAskedRows = 512;
  static constexpr int kCandidates = 24, kRounds = 4, kRuns = 4;

  Api api_;
  cublasLtHandle_t handle_;
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
