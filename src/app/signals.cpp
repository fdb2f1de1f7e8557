// SPDX-License-Identifier: Apache-2.0
#include "app/signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

namespace wick {

namespace {

// A handler can reach nothing but a global.
volatile sig_atomic_t stop_asked = 0;
volatile int64_t asked_at = 0;  // milliseconds

int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // may be called by a handler
  return int64_t{1000} * now.tv_sec + now.tv_nsec / 1000000;
}

// A key that bounces, or a wrapper that hands on what the terminal has sent already, is one wish.
constexpr int64_t kOneWishMs = 500;

void on_signal(int) {
  const int64_t now = now_ms();
  if (stop_asked) {
    if (now - asked_at < kOneWishMs) return;
    constexpr char kSaid[] = "\nstopped at once, without saving\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kSaid, sizeof kSaid - 1);
    _exit(1);
  }
  asked_at = now;
  stop_asked = 1;
}

// Every further write says it again: that is not a second wish.
void on_closed_pipe(int) { stop_asked = 1; }

void install(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  // Without SA_RESTART: a read from the terminal returns, so that the prompt can react.
  sigaction(signal, &action, nullptr);
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

StopSignal::StopSignal(bool terminate) {
  stop_asked = 0;
  install(SIGINT, on_signal);
  if (!terminate) return;
  install(SIGTERM, on_signal);
  if (!is_ignored(SIGHUP)) install(SIGHUP, on_signal);
}

StopSignal::~StopSignal() {
  install(SIGINT, SIG_DFL);
  install(SIGTERM, SIG_DFL);
  if (!is_ignored(SIGHUP)) install(SIGHUP, SIG_DFL);
}

void StopSignal::heed_closed_pipe() {
  if (!is_ignored(SIGPIPE)) install(SIGPIPE, on_closed_pipe);
}

bool StopSignal::asked() const { return stop_asked != 0; }

void StopSignal::clear() { stop_asked = 0; }

}  // namespace wick
