// SPDX-License-Identifier: Apache-2.0
// LateBackend: the CPU as a device that runs ahead of the host, as late as it may. A run is only
// noted; it is made, in order, when somebody waits for it or looks at memory. So whoever reads a
// result without waiting, feeds what an earlier run still reads, or keeps more than
// AheadProgram::kRuns runs unread gets other bits here, and always the same ones.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "backend/ahead.h"

namespace wick {

class LateBackend final : public Backend {
 public:
  explicit LateBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  DeviceInfo info() const override { return inner_->info(); }
  ElementBytes element_sizes() const override { return inner_->element_sizes(); }
  BufferPtr allocate(DType dtype, int64_t count) override { return inner_->allocate(dtype, count); }
  void upload(Buffer& to, DType dtype, int64_t offset, int64_t count, const void* data) override {
    queue_->run_all();
    inner_->upload(to, dtype, offset, count, data);
  }
  void download(const Buffer& from, DType dtype, int64_t offset, int64_t count,
                void* data) const override {
    queue_->run_all();
    inner_->download(from, dtype, offset, count, data);
  }
  std::vector<WeightForm> weight_forms(const Plan& plan) const override {
    return inner_->weight_forms(plan);
  }
  int64_t weight_bytes(const Value& weight, WeightForm form) const override {
    return inner_->weight_bytes(weight, form);
  }
  BufferPtr prepare(const Value& weight, WeightForm form, const void* rows) override {
    return inner_->prepare(weight, form, rows);
  }
  bool runs_ahead() const override { return true; }
  Selection select(const Plan& plan) const override { return inner_->select(plan); }
  std::unique_ptr<Program> compile(const Plan& plan, const Bindings& bindings,
                                   BufferPtr arena) override {
    return std::make_unique<LateProgram>(plan, inner_->compile(plan, bindings, std::move(arena)),
                                         *queue_);
  }

  // The most runs that were noted and not made.
  size_t most_waiting() const { return queue_->most; }

 private:
  using Feeds = std::map<ValueId, std::vector<std::byte>>;
  class LateProgram;
  struct Queue {
    struct Run {
      LateProgram* program;
      Feeds feeds;
    };
    std::deque<Run> runs;
    size_t most = 0;
    void run_one();
    void run_all() {
      while (!runs.empty()) run_one();
    }
  };

  class LateProgram final : public Program, public AheadProgram {
   public:
    LateProgram(const Plan& plan, std::unique_ptr<Program> inner, Queue& queue)
        : inner_(std::move(inner)), queue_(queue) {
      for (ValueId id : plan.results) {
        const Value& v = plan.value(id);
        sizes_[id] = static_cast<size_t>(v.shape.elements()) * dtype_bytes(v.dtype);
      }
    }
    ~LateProgram() override { queue_.run_all(); }

    void feed(ValueId id, const void* data, size_t bytes) override {
      const auto* first = static_cast<const std::byte*>(data);
      feeds_[id].assign(first, first + bytes);
    }
    void run() override {
      queue_.runs.push_back({this, feeds_});
      queue_.most = std::max(queue_.most, queue_.runs.size());
      ++started_;
    }
    void wait() override {
      queue_.run_all();
      waited_ = started_;
    }
    void wait_oldest() override {
      while (made_ <= waited_) queue_.run_one();
      ++waited_;
    }
    void read(ValueId id, void* data, size_t bytes) const override {
      if (sizes_.count(id) == 0) {
        queue_.run_all();
        return inner_->read(id, data, bytes);
      }
      const Feeds& last = results_[(waited_ + kRuns - 1) % kRuns];
      std::copy_n(last.at(id).begin(), bytes, static_cast<std::byte*>(data));
    }
    size_t arena_bytes() const override { return inner_->arena_bytes(); }

    void make(const Feeds& feeds) {
      for (const auto& [id, bytes] : feeds) inner_->feed(id, bytes.data(), bytes.size());
      inner_->run();
      inner_->wait();
      Feeds& to = results_[made_++ % kRuns];
      for (const auto& [id, size] : sizes_) {
        to[id].resize(size);
        inner_->read(id, to[id].data(), size);
      }
    }

   private:
    std::unique_ptr<Program> inner_;
    Queue& queue_;
    std::map<ValueId, size_t> sizes_;  // of results, in bytes
    Feeds feeds_, results_[kRuns];
    size_t started_ = 0, made_ = 0, waited_ = 0;
  };

  std::unique_ptr<Backend> inner_;
  std::unique_ptr<Queue> queue_ = std::make_unique<Queue>();
};

inline void LateBackend::Queue::run_one() {
  const Run run = std::move(runs.front());
  runs.pop_front();
  run.program->make(run.feeds);
}

}  // namespace wick
