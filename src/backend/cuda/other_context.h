// SPDX-License-Identifier: Apache-2.0
// OtherContext: a second context on the card for work whose traces shall go with it. Code that is
// loaded into a context stays there, and launches of a graph in it take longer the more there is.
#pragma once

#include <memory>

namespace wick::cuda {

class OtherContext {
 public:
  // Null where the driver makes none. The thread's own context stays current.
  static std::unique_ptr<OtherContext> make();
  ~OtherContext();
  OtherContext(const OtherContext&) = delete;
  OtherContext& operator=(const OtherContext&) = delete;

  // While it lives, the runtime's calls of this thread mean the other context; null: its own.
  class Visit {
   public:
    explicit Visit(const OtherContext* context);
    ~Visit();
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    const OtherContext* context_;
  };

 private:
  struct Impl;
  explicit OtherContext(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace wick::cuda
