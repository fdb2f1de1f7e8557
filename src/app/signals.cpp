// SPDX-License-Identifier: Apache-2.0
#include "app/signals.h"

#include <signal.h>
#include <unistd.h>

namespace wick {

namespace {

// A handler can reach nothing but a global.
volatile sig_atomic_t stop_asked = 0;

void on_signal(int) {
  if (stop_asked) _exit(130);
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
