// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/cuda.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "backend/cuda/blas.h"
#include "backend/cuda/cuda_program.h"
#include "backend/cuda/skinny.h"
#include "backend/cuda/tuning.h"
#include "base/check.h"
#include "base/half.h"

namespace wick {

using namespace cuda;

namespace {

constexpr const char* kArchNames[] = {"sm_80", "sm_90"};

std::string find_problem() {
  int count = 0, driver = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaDriverGetVersion(&driver);
  if (driver == 0) return "no NVIDIA driver was found";
  if (status == cudaErrorInsufficientDriver)
    return cat("the NVIDIA driver knows CUDA ", driver / 1000, ".", driver % 1000 / 10,
               ", this binary needs ", CUDART_VERSION / 1000, ".0; update the driver");
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
    return "the NVIDIA driver shows no GPU (is CUDA_VISIBLE_DEVICES empty?)";
  if (status != cudaSuccess) return cat("CUDA did not start: ", cudaGetErrorString(status));
  cudaDeviceProp p{};
  if (cudaGetDeviceProperties(&p, 0) != cudaSuccess) return "the GPU does not answer";
  if (p.major < 8)
    return cat(p.name, " has compute capability ", p.major, ".", p.minor, ", wick needs 8.0");
  return {};
}

bool is_whole_matrix(const Plan& plan, ValueId id) {
  const Value& v = plan.value(id);
  return v.kind == Kind::kWeight && !plan.is_view(id) && v.shape.rank() == 2;
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const BackendOptions& options) {
    if (!cuda_problem().empty()) fail(ErrorCode::kNotFound, "--device cuda: ", cuda_problem());
    succeed(cudaGetDeviceProperties(&properties_, 0), "be looked at");
    succeed(cudaSetDevice(0), "be used");
    const bool hopper = properties_.major == 9;
    queue_.arch = hopper ? Arch::kSm90 : Arch::kSm80;
    if (options.cuda_arch == kArchNames[0]) {
      queue_.arch = Arch::kSm80;
    } else if (!options.cuda_arch.empty() && !(options.cuda_arch == kArchNames[1] && hopper)) {
      fail(ErrorCode::kInvalidArgument, "--cuda-arch ", options.cuda_arch,
           " does not run on this GPU (it takes sm_80", hopper ? ", sm_90)" : ")");
    }
    for (cudaStream_t* stream : {&queue_.stream, &copies_})
      succeed(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "make a stream");
    queue_.sms = properties_.multiProcessorCount;
    queue_.skinny = &skinny_;
    blas_ = Blas::open(tuning_file(), blas_problem_);
    queue_.blas = blas_.get();
    for (auto list :
         {linear_candidates, attention_candidates, norm_candidates, layer_norm_candidates,
          softmax_candidates, elementwise_candidates, row_candidates, column_candidates,
          sample_candidates, head_candidates, kl_head_candidates, preference_candidates,
          optimizer_candidates, matrix_optimizer_candidates}) {
      const Candidates some = list(queue_.arch);
      candidates_.insert(candidates_.end(), some.begin(), some.end());
    }
  }
  ~CudaBackend() override {
    cudaStreamDestroy(copies_);
    cudaStreamDestroy(queue_.stream);
  }

  DeviceInfo info() const override {
    DeviceInfo info;
    info.name = "cuda";
    info.isa = kArchNames[static_cast<int>(queue_.arch)];
    info.isas = cuda_archs();
    info.missing = blas_ ? "" : cat("fast products: ", blas_problem_);
    info.description = cat(properties_.name, ", compute capability ", properties_.major, ".",
                           properties_.minor, ", ", properties_.multiProcessorCount,
                           " multiprocessors", blas_ ? ", cuBLASLt " + blas_->version() : "");
    info.threads = 1;
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    info.memory_bytes = free;
    return info;
  }

  double peak_gflops(DType compute) const override;
  DeviceSpeed speed() const override;

  ElementBytes element_sizes() const override {
    return [](DType t) { return dtype_bytes(t); };
  }
  BufferPtr allocate(DType dtype, int64_t count) override {
    WICK_CHECK(count >= 0, "count ", count);
    return std::make_shared<DeviceBuffer>(static_cast<size_t>(count) * dtype_bytes(dtype),
                                          queue_.stream);
  }
  void upload(Buffer& to, DType dtype, int64_t offset, int64_t count, const void* data) override {
    copy(to, dtype, offset, count, [&](std::byte* at, size_t bytes) {
      return cudaMemcpyAsync(at, data, bytes, cudaMemcpyHostToDevice, queue_.stream);
    });
  }
  void download(const Buffer& from, DType dtype, int64_t offset, int64_t count,
                void* data) const override {
    copy(from, dtype, offset, count, [&](std::byte* at, size_t bytes) {
      return cudaMemcpyAsync(data, at, bytes, cudaMemcpyDeviceToHost, queue_.stream);
    });
  }
  DType preferred_compute() const override { return DType::kBF16; }
  int64_t tokens_at_once() const override { return 8192; }
  bool runs_ahead() const override { return true; }
  bool skips_rows() const override { return false; }

  // What the tensor cores want: bf16, whatever the file has; codes in padded rows.
  std::vector<WeightForm> weight_forms(const Plan& plan) const override {
    std::vector<WeightForm> forms = tile_forms(plan);
    for (ValueId id = 0; id < static_cast<ValueId>(plan.values.size()); ++id)
      if (is_whole_matrix(plan, id) && dtype_is_quantized(plan.value(id).dtype))
        forms[static_cast<size_t>(id)] = WeightForm::kTiles;
    return forms;
  }
  int64_t weight_bytes(const Value& weight, WeightForm form) const override {
    if (dtype_is_quantized(weight.dtype))
      return weight.shape.rows() *
             static_cast<int64_t>(device_row_bytes(weight.dtype, weight.shape.cols()));
    if (form == WeightForm::kRows) return Backend::weight_bytes(weight, form);
    return weight.shape.elements() * static_cast<int64_t>(dtype_bytes(DType::kBF16));
  }
  BufferPtr prepare(const Value& weight, WeightForm form, const void* rows) override {
    if (form == WeightForm::kRows || weight.dtype == DType::kBF16)
      return Backend::prepare(weight, WeightForm::kRows, rows);
    const std::vector<std::byte> made =
        dtype_is_quantized(weight.dtype) ? padded_rows(weight, static_cast<const std::byte*>(rows))
                                         : rows_in_bf16(weight, rows);
    BufferPtr buffer = allocate(DType::kU8, static_cast<int64_t>(made.size()));
    upload(*buffer, DType::kU8, 0, static_cast<int64_t>(made.size()), made.data());
    return buffer;
  }
  Selection select(const Plan& plan) const override {
    return select_candidates(plan, candidates_, queue_.sms, "cuda", weight_forms(plan));
  }
  std::unique_ptr<Program> compile(const Plan& plan, const Bindings& bindings,
                                   BufferPtr arena) override {
    return std::make_unique<CudaProgram>(plan, select(plan), candidates_, bindings, element_sizes(),
                                         queue_, copies_, std::move(arena));
  }

 private:
  // One for each kind of card and driver.
  std::string tuning_file() const {
    const std::string folder = tuning_folder();
    if (folder.empty()) return {};
    int driver = 0;
    cudaDriverGetVersion(&driver);
    std::string name = properties_.name;
    for (char& c : name)
      if (!std::isalnum(static_cast<unsigned char>(c))) c = '-';
    return cat(folder, "/", name, "-cuda-", driver, ".tuning");
  }

  template <typename F>
  double best_seconds(F&& enqueue) const;
  double product_gflops(DType dtype, int64_t side) const;

  std::vector<std::string> cuda_archs() const {
    std::vector<std::string> names{kArchNames[0]};
    if (properties_.major == 9) names.insert(names.begin(), kArchNames[1]);
    return names;
  }

  // Stream order makes what was enqueued before visible; the host waits.
  template <typename Copy>
  void copy(const Buffer& buffer, DType dtype, int64_t offset, int64_t count, Copy enqueue) const {
    const size_t size = dtype_bytes(dtype), first = static_cast<size_t>(offset) * size;
    const size_t bytes = static_cast<size_t>(count) * size;
    WICK_CHECK(offset >= 0 && count >= 0 && first + bytes <= buffer.bytes(), "elements ", offset,
               " to ", offset + count, " of a buffer of ", buffer.bytes(), " bytes");
    flush(queue_);
    succeed(cudaGetLastError(), "start a kernel");
    if (bytes > 0) succeed(enqueue(buffer.address() + first, bytes), "copy memory");
    succeed(cudaStreamSynchronize(queue_.stream), "copy memory");
  }

  static std::vector<std::byte> padded_rows(const Value& w, const std::byte* rows) {
    const size_t stride = row_bytes(w.dtype, w.shape.cols());
    const size_t padded = device_row_bytes(w.dtype, w.shape.cols());
    const auto count = static_cast<size_t>(w.shape.rows());
    std::vector<std::byte> made(count * padded);
    for (size_t r = 0; r < count; ++r)
      std::memcpy(made.data() + r * padded, rows + r * stride, stride);
    return made;
  }
  static std::vector<std::byte> rows_in_bf16(const Value& w, const void* rows) {
    const auto count = static_cast<size_t>(w.shape.elements());
    std::vector<std::byte> made(count * sizeof(bf16));
    auto* to = reinterpret_cast<bf16*>(made.data());
    for (size_t i = 0; i < count; ++i)
      to[i] = to_bf16(w.dtype == DType::kF16 ? to_float(static_cast<const f16*>(rows)[i])
                                             : static_cast<const float*>(rows)[i]);
    return made;
  }

  cudaDeviceProp properties_{};
  Queue queue_;
  cudaStream_t copies_ = nullptr;  // of feeds
  SkinnyList skinny_;
  std::unique_ptr<Blas> blas_;
  std::string blas_problem_;
  std::vector<Candidate> candidates_;
  mutable std::once_flag measured_[2];  // f32, bf16
  mutable double peak_[2] = {0, 0};
};

// Seconds of what `enqueue` puts on the stream, the best of a few rounds.
template <typename F>
double CudaBackend::best_seconds(F&& enqueue) const {
  cudaEvent_t begin = nullptr, end = nullptr;
  succeed(cudaEventCreate(&begin), "make an event");
  succeed(cudaEventCreate(&end), "make an event");
  float least = INFINITY;
  for (int round = 0; round < 4; ++round) {
    cudaEventRecord(begin, queue_.stream);
    enqueue();
    cudaEventRecord(end, queue_.stream);
    succeed(cudaEventSynchronize(end), "be measured");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (round > 0) least = std::min(least, ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return static_cast<double>(least) * 1e-3;
}

double CudaBackend::product_gflops(DType dtype, int64_t side) const {
  const size_t bytes = static_cast<size_t>(side * side) * dtype_bytes(dtype);
  const DeviceBuffer memory(3 * bytes + Blas::kWorkspace, queue_.stream);
  // Not zeros: their products take less power, and so less time, than real ones.
  cudaMemsetAsync(memory.address(), 0x3f, 3 * bytes, queue_.stream);
  auto matrix = [&](size_t at) {
    return Operand{.data = memory.address() + at * bytes,
                   .rows = side,
                   .cols = side,
                   .ld = side,
                   .dtype = dtype};
  };
  const double seconds = best_seconds(
      [&] { product(queue_, {}, matrix(0), matrix(1), matrix(2), memory.address() + 3 * bytes); });
  const auto s = static_cast<double>(side);
  return 2 * s * s * s / seconds * 1e-9;
}

double CudaBackend::peak_gflops(DType compute) const {
  const bool bf16 = compute == DType::kBF16;
  std::call_once(measured_[bf16], [&] { peak_[bf16] = product_gflops(compute, 4096); });
  return peak_[bf16];
}

DeviceSpeed CudaBackend::speed() const {
  DeviceSpeed speed;
  speed.bf16_gflops = product_gflops(DType::kBF16, 8192);
  speed.f32_gflops = product_gflops(DType::kF32, 4096);
  constexpr size_t kBytes = size_t{1} << 30;
  const DeviceBuffer memory(2 * kBytes, queue_.stream);
  const double seconds = best_seconds([&] {
    cudaMemcpyAsync(memory.address(), memory.address() + kBytes, kBytes, cudaMemcpyDeviceToDevice,
                    queue_.stream);
  });
  speed.read_gbps = 2.0 * static_cast<double>(kBytes) / seconds * 1e-9;
  return speed;
}

}  // namespace

const std::string& cuda_problem() {
  static const std::string problem = find_problem();
  return problem;
}

std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options) {
  return std::make_unique<CudaBackend>(options);
}

}  // namespace wick
