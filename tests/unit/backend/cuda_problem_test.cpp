// SPDX-License-Identifier: Apache-2.0
// Why a card cannot be used, in words; each asked by a process of its own, since a process asks
// once.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "backend/cuda/cuda.h"
#include "backend/cuda/memory.h"
#include "unit/backend/cuda/card.h"
#include "wick/error.h"

namespace wick {
namespace {

void say_problem(const card::Card& card) {
  card::use(card);
  std::cerr << cuda_problem() << "|";
  std::exit(0);
}

TEST(CudaProblem, IsNamed) {
  const card::Card good = card::cards().front();
  EXPECT_EXIT(say_problem(good), testing::ExitedWithCode(0), "^\\|$");
  card::Card none = good, old = good, small = good;
  none.present = false;
  EXPECT_EXIT(say_problem(none), testing::ExitedWithCode(0), "is CUDA_VISIBLE_DEVICES empty");
  old.driver = 11040;
  EXPECT_EXIT(say_problem(old), testing::ExitedWithCode(0), "knows CUDA 11.4, this binary needs");
  small.name = "T4";
  small.major = 7;
  small.minor = 5;
  EXPECT_EXIT(say_problem(small), testing::ExitedWithCode(0), "T4 has compute capability 7.5");
}

TEST(CudaProblem, AFailureSaysWhatToDo) {
  auto message = [](cudaError_t status) -> std::string {
    try {
      cuda::succeed(status, "start a kernel");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message(cudaSuccess), "");
  EXPECT_NE(message(cudaErrorUnsupportedPtxVersion).find("update the NVIDIA driver"),
            std::string::npos);
  EXPECT_NE(message(cudaErrorDevicesUnavailable).find("end the process that holds the GPU"),
            std::string::npos);
  EXPECT_EQ(message(cudaErrorLaunchFailure).find("--device cpu"), std::string::npos);
}

}  // namespace
}  // namespace wick
