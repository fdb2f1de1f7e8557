// SPDX-License-Identifier: Apache-2.0
#include "unit/backend/cuda/card.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "backend/cuda/blas.h"

namespace wick::card {
namespace {

constexpr size_t kUnasked = size_t{48} << 10;  // shared memory that every kernel may have
// No address of a host, nor of anything that it may read.
constexpr uintptr_t kFirstAddress = uintptr_t{1} << 56;

struct Launch {
  dim3 grid, block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};

struct State {
  Card card;
  size_t taken = 0;
  uintptr_t next = kFirstAddress;
  std::map<uintptr_t, size_t> memory;
  std::map<const void*, std::string> names;
  std::map<const void*, size_t> shared;  // that kernels were allowed
  std::map<const void*, bool> large_clusters;
  Launch pushed;
  uintptr_t handles = 0;
  std::vector<std::string> complaints;
};
State& state() {
  static State all;
  return all;
}

template <typename Handle>
cudaError_t make(Handle* handle) {
  *handle = reinterpret_cast<Handle>(++state().handles);
  return cudaSuccess;
}

template <typename... Parts>
void complain(const Parts&... parts) {
  state().complaints.push_back(cat(parts...));
}

void look_at(const void* kernel, const Launch& l, int cluster) {
  State& s = state();
  const std::string& name = s.names[kernel];
  auto wrong = [&](const auto&... what) { complain(name, ": ", what...); };
  constexpr uint64_t kAcross = (uint64_t{1} << 31) - 1, kDown = 65535;
  if (l.grid.x == 0 || l.grid.y == 0 || l.grid.z == 0 || l.grid.x > kAcross || l.grid.y > kDown ||
      l.grid.z > kDown)
    wrong("a grid of ", l.grid.x, " x ", l.grid.y, " x ", l.grid.z);
  const uint64_t threads = uint64_t{l.block.x} * l.block.y * l.block.z;
  if (threads == 0 || threads > 1024 || l.block.z > 64) wrong("a block of ", threads, " threads");
  const auto allowed = s.shared.find(kernel);
  if (l.shared > (allowed == s.shared.end() ? kUnasked : std::max(kUnasked, allowed->second)))
    wrong(l.shared, " bytes of shared memory, which it was not allowed");
  if (cluster > 1 && s.card.major < 9) wrong("clusters");
  if (cluster > 16 || (cluster > 8 && !s.large_clusters[kernel]))
    wrong("clusters of ", cluster, " blocks");
  if (cluster > 1 && l.grid.x % static_cast<unsigned>(cluster) != 0)
    wrong(l.grid.x, " blocks in clusters of ", cluster);
}

int cluster_of(const cudaLaunchConfig_t& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i)
    if (config.attrs[i].id == cudaLaunchAttributeClusterDimension)
      return static_cast<int>(config.attrs[i].val.clusterDim.x);
  return 1;
}

// Copies and products that leave what was allocated.
void look_at(const void* at, size_t bytes, const char* what) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  const auto& memory = state().memory;
  auto found = memory.upper_bound(address);
  if (found == memory.begin() || (--found)->first + found->second < address + bytes)
    complain(what, " of ", bytes, " bytes beyond what was allocated");
}
bool is_on_card(const void* at) { return reinterpret_cast<uintptr_t>(at) >= kFirstAddress; }

class Products final : public cuda::Blas {
 public:
  std::string version() const override { return "as described"; }
  bool multiply(const cuda::Queue&, const cuda::Product& p, const Operand& a, const Operand& b,
                const Operand& y, const Operand& bias, void* workspace) const override {
    const bool a_turned = p.trans == cuda::Trans::kTN, b_turned = p.trans != cuda::Trans::kNT;
    const int64_t m = a_turned ? a.cols : a.rows, k = a_turned ? a.rows : a.cols,
                  n = b_turned ? b.cols : b.rows;
    if (a.dtype != b.dtype || (y.dtype != a.dtype && y.dtype != DType::kF32) || y.rows != m ||
        y.cols != n || (b_turned ? b.rows : b.cols) != k || (bias && bias.cols != n))
      complain("a product of [", a.rows, ", ", a.cols, "] and [", b.rows, ", ", b.cols, "] to [",
               y.rows, ", ", y.cols, "]");
    for (const Operand& o : {a, b, y}) {
      const size_t size = dtype_bytes(o.dtype);
      if (reinterpret_cast<uintptr_t>(o.data) % 16 != 0 ||
          static_cast<size_t>(o.ld) * size % 16 != 0)
        complain("a product of rows that are not aligned");
      look_at(o.data, static_cast<size_t>((o.rows - 1) * o.ld + o.cols) * size, "a product");
    }
    if (workspace != nullptr) look_at(workspace, kWorkspace, "a workspace");
    return true;
  }
  void settle() const override {}
};

CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* at,
                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const size_t size = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
  bool fits = reinterpret_cast<uintptr_t>(at) % 16 == 0 && rank == 2 && sizes[0] > 0 &&
              sizes[1] > 0 && sizes[1] <= uint64_t{1} << 32 && strides[0] % 16 == 0 &&
              strides[0] < uint64_t{1} << 40 && box[1] <= 256 && steps[0] == 1 && steps[1] == 1;
  if (swizzle == CU_TENSOR_MAP_SWIZZLE_128B) fits = fits && box[0] * size <= 128;
  if (!fits) return CUDA_ERROR_INVALID_VALUE;
  look_at(at, (sizes[1] - 1) * strides[0] + sizes[0] * size, "a map");
  std::memset(map, 0, sizeof *map);
  return CUDA_SUCCESS;
}

}  // namespace

std::vector<Card> cards() {
  constexpr size_t kKilo = 1024, kGiga = size_t{1} << 30;
  return {{"H200", 9, 0, 132, 227 * kKilo, 140 * kGiga},
          {"H20", 9, 0, 78, 227 * kKilo, 96 * kGiga},
          {"A100", 8, 0, 108, 163 * kKilo, 80 * kGiga},
          {"RTX-3090", 8, 6, 82, 99 * kKilo, 24 * kGiga},
          {"RTX-4090", 8, 9, 128, 99 * kKilo, 24 * kGiga},
          {"B200", 10, 0, 148, 227 * kKilo, 180 * kGiga},
          {"RTX-5090", 12, 0, 170, 99 * kKilo, 32 * kGiga}};
}

void use(const Card& card) {
  State& s = state();
  s.card = card;
  s.taken = 0;
  s.shared.clear();
  s.large_clusters.clear();
}
std::vector<std::string> take_complaints() { return std::exchange(state().complaints, {}); }

}  // namespace wick::card

namespace wick::cuda {

std::unique_ptr<Blas> Blas::open(const std::string&, std::string& problem) {
  if (card::state().card.fast_products) return std::make_unique<card::Products>();
  problem = "the card is described without them";
  return nullptr;
}

}  // namespace wick::cuda

using namespace wick::card;

extern "C" {

// ---- what the compiler calls

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  state().names[kernel] = name;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  state().pushed = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const Launch& l = state().pushed;
  *grid = l.grid;
  *block = l.block;
  *shared = l.shared;
  *static_cast<cudaStream_t*>(stream) = l.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void**, size_t shared,
                             cudaStream_t stream) {
  look_at(kernel, {grid, block, shared, stream}, 1);
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                               size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, args, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
  if (config->numAttrs > 0 && state().card.major < 9)
    complain("an attribute of launches that the card has not");
  look_at(kernel, {config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream},
          cluster_of(*config));
  return cudaSuccess;
}

// ---- the card

cudaError_t cudaGetDeviceCount(int* count) {
  const Card& card = state().card;
  *count = card.present ? 1 : 0;
  if (card.driver != 0 && card.driver / 1000 < CUDART_VERSION / 1000)
    return cudaErrorInsufficientDriver;
  return card.present ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaDriverGetVersion(int* version) {
  const int driver = state().card.driver;
  *version = driver != 0 ? driver : CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  const Card& card = state().card;
  *p = {};
  card.name.copy(p->name, sizeof p->name - 1);
  p->major = card.major;
  p->minor = card.minor;
  p->multiProcessorCount = card.multiprocessors;
  p->totalGlobalMem = card.memory;
  p->sharedMemPerBlockOptin = card.shared;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int) {
  const Card& card = state().card;
  switch (what) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(card.shared);
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = card.multiprocessors;
      return cudaSuccess;
    default:
      complain("an attribute that is not described: ", int{what});
      return cudaErrorInvalidValue;
  }
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute what, int value) {
  State& s = state();
  if (what == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (static_cast<size_t>(value) > s.card.shared) return cudaErrorInvalidValue;
    s.shared[kernel] = static_cast<size_t>(value);
  }
  if (what == cudaFuncAttributeNonPortableClusterSizeAllowed) {
    if (s.card.major < 9) return cudaErrorInvalidValue;
    s.large_clusters[kernel] = value != 0;
  }
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*,
                                           const cudaLaunchConfig_t* config) {
  const Card& card = state().card;
  *clusters =
      config->dynamicSmemBytes > card.shared ? 0 : card.multiprocessors / cluster_of(*config);
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool known = std::string(name) == "cuTensorMapEncodeTiled";
  *function = known ? reinterpret_cast<void*>(&encode) : nullptr;
  *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

// ---- memory

cudaError_t cudaMalloc(void** data, size_t bytes) {
  State& s = state();
  if (bytes > s.card.memory - s.taken) return cudaErrorMemoryAllocation;
  s.taken += bytes;
  *data = reinterpret_cast<void*>(s.next);
  s.memory[s.next] = bytes;
  s.next += (bytes / 512 + 2) * 512;
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  State& s = state();
  const auto at = s.memory.find(reinterpret_cast<uintptr_t>(data));
  if (at == s.memory.end()) {
    complain("memory that is given back was not allocated");
    return cudaErrorInvalidValue;
  }
  s.taken -= std::min(s.taken, at->second);
  s.memory.erase(at);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = state().card.memory - state().taken;
  *total = state().card.memory;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  *data = std::calloc(bytes, 1);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  for (const void* at : {static_cast<const void*>(to), from})
    if (is_on_card(at)) look_at(at, bytes, "a copy");
  if (!is_on_card(to)) std::memset(to, 0, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_step, const void* from, size_t from_step,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t) {
  look_at(from, (height - 1) * from_step + width, "a copy");
  for (size_t i = 0; i < height; ++i)
    std::memset(static_cast<std::byte*>(to) + i * to_step, 0, width);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int, size_t bytes, cudaStream_t) {
  look_at(to, bytes, "a fill");
  return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void* to, size_t step, int, size_t width, size_t height,
                              cudaStream_t) {
  look_at(to, (height - 1) * step + width, "a fill");
  return cudaSuccess;
}

// ---- streams, events and graphs

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return make(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return cudaSuccess; }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) { return make(graph); }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return make(event); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return make(event); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 1;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t, unsigned long long) {
  return make(made);
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "as described"; }
const char* cudaGetErrorName(cudaError_t) { return "as described"; }

}  // extern "C"
