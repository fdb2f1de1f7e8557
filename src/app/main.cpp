// SPDX-License-Identifier: Apache-2.0
// wick VERB …: finds the verb, runs it, and turns what went wrong into one line and an exit code.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <new>

#include "app/args.h"
#include "app/format.h"
#include "app/help.h"
#include "app/verbs.h"
#include "base/check.h"
#include "base/process.h"
#include "wick/error.h"
#include "wick/version.h"

namespace {

using namespace wick;

// A standard stream that is closed would lend its number to the next file, which would get its
// words. Opened the wrong way round, it refuses as a closed one does.
void keep_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

int complain(const std::string& who, std::string message, int code) {
  std::fflush(stdout);
  std::replace(message.begin(), message.end(), '\n', ' ');
  std::fprintf(stderr, "%s: %s\n", who.c_str(), visible(message, true).c_str());
  return code;
}

int print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  return kDone;
}

std::vector<std::string> verbs_with(const std::string& option) {
  std::vector<std::string> names;
  for (const auto& args : all_args())
    if (args->knows(option)) names.push_back(args->verb());
  return names;
}

int run_verb(const Verb& verb, const std::vector<std::string>& words) {
  Args args(verb.name);
  args.other_verbs = verbs_with;
  auto work = verb.declare(args);
  switch (args.parse(words)) {
    case Args::Parsed::kHelp:
      return print(verb_help(args));
    case Args::Parsed::kVersion:
      return print("wick " WICK_VERSION "\n");
    case Args::Parsed::kRun:
      break;
  }
  for (const auto& note : args.notes())
    std::fprintf(stderr, "wick %s: %s\n", verb.name.c_str(), visible(note, true).c_str());
  return work();
}

int dispatch(std::vector<std::string> words, std::string& who) {
  if (words.empty()) {
    std::fputs(overview().c_str(), stderr);
    return kWrongUse;
  }
  std::string name = words[0];
  if (name == "--version" || name == "-V") return print("wick " WICK_VERSION "\n");
  if (name == "--help" || name == "-h" || name == "help") {
    if (words.size() < 2) return print(overview());
    name = words[1];
    words = {name, "--help"};
  }
  std::vector<std::string> known;
  for (const Verb& verb : verbs()) {
    if (verb.name == name) {
      who += " " + name;
      return run_verb(verb, {words.begin() + 1, words.end()});
    }
    if (!verb.hidden) known.push_back(verb.name);
  }
  if (name.starts_with("-"))
    throw UsageError(cat("unknown flag ", name, " before a verb; write wick VERB ", name));
  std::string near = nearest_name(name, known);
  throw UsageError(cat("unknown verb \"", name, "\"; ",
                       near.empty() ? "see wick --help" : "did you mean " + near + "?"));
}

}  // namespace

int main(int argc, char** argv) {
  keep_standard_streams();
  share_one_heap();
  // A file that reaches the limit of `ulimit -f` is an error of that write, not the end of a run.
  signal(SIGXFSZ, SIG_IGN);
  std::string who = "wick";
  int code = wick::kFailed;
  try {
    code = dispatch({argv + 1, argv + argc}, who);
  } catch (const wick::UsageError& error) {
    code = complain(who, error.what(), wick::kWrongUse);
  } catch (const wick::Error& error) {
    bool stopped = error.code() == wick::ErrorCode::kCancelled;
    code = complain(who, error.what(), stopped ? wick::kInterrupted : wick::kFailed);
  } catch (const std::bad_alloc&) {
    code = complain(who, "out of memory", wick::kFailed);
  } catch (const std::exception& error) {
    code = complain(who, error.what(), wick::kFailed);
  }
  // An earlier write may have failed too: its text is gone, and only the mark is left.
  if ((std::fflush(stdout) != 0 || std::ferror(stdout)) && code == wick::kDone)
    code = complain(who, "standard output could not be written; is the disk full?", wick::kFailed);
  return code;
}
