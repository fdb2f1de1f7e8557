// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plan/plan.h"

namespace wick {

namespace {

// Follows one plan from the first step to the last and keeps what has been written and read.
class Checker {
 public:
  explicit Checker(const Plan& plan)
      : plan_(plan), written_(plan.values.size()), read_(plan.values.size()) {}

  void run() {
    for (size_t id = 0; id < plan_.values.size(); ++id) check_view(static_cast<ValueId>(id));
    for (at_ = 0; at_ < plan_.steps.size(); ++at_) check_step(plan_.steps[at_]);
    for (ValueId id : plan_.results) {
      WICK_CHECK(id >= 0 && static_cast<size_t>(id) < plan_.values.size(), "result ", id);
      if (plan_.value(id).kind == Kind::kTemp)
        WICK_CHECK(is_written(id), "the result ", plan_.value(id).name, " is never written");
    }
  }

 private:
  void check_view(ValueId id) const {
    const Value& v = plan_.value(id);
    WICK_CHECK(v.root >= 0 && static_cast<size_t>(v.root) < plan_.values.size(), v.name);
    const Value& root = plan_.value(v.root);
    WICK_CHECK(root.root == v.root, v.name, " is a view of a view");
    if (v.root == id) return;
    int64_t rows = v.shape.rows(), cols = v.shape.cols();
    WICK_CHECK(v.dtype == root.dtype && v.kind == root.kind, v.name, " differs from its root");
    WICK_CHECK(v.offset >= 0 && v.ld >= cols && rows > 0 && cols > 0 &&
                   v.offset + (rows - 1) * v.ld + cols <= root.shape.elements(),
               v.name, " lies outside ", root.name, " ", root.shape.str());
  }

  std::string where() const {
    const Step& step = plan_.steps[at_];
    return cat("step ", at_, " ", op_name(step.op), step.dir == Dir::kBackward ? "_bwd" : "_fwd");
  }

  bool is_written(ValueId v) const {
    int64_t covered = 0;
    for (ValueId part : written_[static_cast<size_t>(plan_.root(v))]) {
      if (covers(plan_, part, v)) return true;
      if (covers(plan_, v, part)) covered += plan_.value(part).shape.elements();
    }
    return covered == plan_.value(v).shape.elements();
  }

  void check_step(const Step& step) {
    for (ValueId in : step.inputs) {
      if (in == kNone) continue;
      WICK_CHECK(static_cast<size_t>(in) < plan_.values.size(), where());
      if (plan_.value(in).kind != Kind::kTemp) continue;
      WICK_CHECK(is_written(in), where(), " reads ", plan_.value(in).name,
                 " before all of it is written");
      read_[static_cast<size_t>(plan_.root(in))].push_back(in);
    }
    for (const Output& out : step.outputs) {
      if (out.value == kNone) continue;
      const Value& v = plan_.value(out.value);
      WICK_CHECK(v.kind == Kind::kTemp || v.kind == Kind::kState, where(), " writes ", v.name,
                 ", which is a weight or a feed");
      if (v.kind == Kind::kState) continue;
      size_t root = static_cast<size_t>(v.root);
      for (ValueId other : read_[root])
        WICK_CHECK(!overlap(plan_, other, out.value), where(), " changes ", v.name,
                   " after it was read");
      if (out.mode == OutMode::kWrite) {
        for (ValueId other : written_[root])
          WICK_CHECK(!overlap(plan_, other, out.value), where(), " writes ", v.name, " twice");
        written_[root].push_back(out.value);
      } else {
        WICK_CHECK(is_written(out.value), where(), " adds to ", v.name, " before it is written");
      }
    }
  }

  const Plan& plan_;
  std::vector<std::vector<ValueId>> written_, read_;  // by root
  size_t at_ = 0;
};

}  // namespace

void check(const Plan& plan) { Checker(plan).run(); }

}  // namespace wick
