// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/blas.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <tuple>

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
using Key =
    std::tuple<int, DType, DType, bool, bool, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;

class LtBlas final : public Blas {
 public:
  LtBlas(const Api& api, cublasLtHandle_t handle) : api_(api), handle_(handle) {}
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
    cublasLtMatrixLayoutOpaque_t la, lb, ly;
    layout(la, b.dtype, first == CUBLAS_OP_T ? k : m, first == CUBLAS_OP_T ? m : k, b.ld);
    layout(lb, a.dtype, second == CUBLAS_OP_T ? n : k, second == CUBLAS_OP_T ? k : n, a.ld);
    layout(ly, y.dtype, m, n, y.ld);
    const Key key{static_cast<int>(p.trans),
                  a.dtype,
                  y.dtype,
                  p.accumulate,
                  bool(bias),
                  m,
                  n,
                  k,
                  a.ld,
                  b.ld,
                  y.ld};
    cublasLtMatmulAlgo_t algo;
    if (!choose(key, desc, la, lb, ly, algo)) return false;
    const float beta = p.accumulate ? 1.0f : 0.0f;
    return api_.matmul(handle_, &desc, &p.alpha, b.data, &la, a.data, &lb, &beta, y.data, &ly,
                       y.data, &ly, &algo, workspace, kWorkspace,
                       queue.stream) == CUBLAS_STATUS_SUCCESS;
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
  bool choose(const Key& key, cublasLtMatmulDescOpaque_t& desc, cublasLtMatrixLayoutOpaque_t& la,
              cublasLtMatrixLayoutOpaque_t& lb, cublasLtMatrixLayoutOpaque_t& ly,
              cublasLtMatmulAlgo_t& algo) const {
    std::lock_guard lock(mutex_);
    if (auto known = chosen_.find(key); known != chosen_.end()) {
      algo = known->second;
      return true;
    }
    cublasLtMatmulPreferenceOpaque_t preference;
    WICK_CHECK(api_.preference_init(&preference, sizeof preference) == CUBLAS_STATUS_SUCCESS);
    const size_t workspace = kWorkspace;
    api_.preference_set(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                        sizeof workspace);
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    if (api_.heuristic(handle_, &desc, &la, &lb, &ly, &ly, &preference, 1, &result, &found) !=
            CUBLAS_STATUS_SUCCESS ||
        found == 0)
      return false;
    algo = result.algo;
    chosen_.emplace(key, algo);
    return true;
  }

  Api api_;
  cublasLtHandle_t handle_;
  mutable std::mutex mutex_;
  mutable std::map<Key, cublasLtMatmulAlgo_t> chosen_;
};

}  // namespace

std::unique_ptr<Blas> Blas::open(std::string& problem) {
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
  return std::make_unique<LtBlas>(api, handle);
}

}  // namespace wick::cuda
