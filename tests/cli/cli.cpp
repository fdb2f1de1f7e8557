// SPDX-License-Identifier: Apache-2.0
#include "cli/cli.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>

#include "base/file.h"
#include "base/rng.h"
#include "io/safetensors_writer.h"

namespace wick::test {

std::vector<Json> CliResult::lines() const {
  std::vector<Json> objects;
  size_t begin = 0;
  while (begin < out.size()) {
    size_t end = std::min(out.find('\n', begin), out.size());
    objects.push_back(parse_json(out.substr(begin, end - begin), "standard output"));
    begin = end + 1;
  }
  return objects;
}

Json CliResult::event(const std::string& name) const {
  for (const Json& object : lines())
    if (const Json* event = find_member(object, "event"); event && *event == name) return object;
  ADD_FAILURE() << "no event " << name << " in:\n" << out << err;
  return Json::object();
}

CliResult wick(const std::vector<std::string>& arguments, const std::string& input,
               const OnOutput& on_output) {
  int in[2], out[2], err[2];
  if (pipe(in) || pipe(out) || pipe(err)) throw std::runtime_error("pipe");
  pid_t pid = fork();
  if (pid == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    for (int fd : {in[0], in[1], out[0], out[1], err[0], err[1]}) close(fd);
    std::vector<char*> words{const_cast<char*>("wick")};
    for (const auto& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    execv(WICK_BINARY, words.data());
    _exit(127);
  }
  for (int fd : {in[0], out[1], err[1]}) close(fd);
  signal(SIGPIPE, SIG_IGN);  // a program that does not read its input may end before us
  CliResult result;
  std::string* texts[] = {&result.out, &result.err};
  pollfd files[3] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}, {in[1], POLLOUT, 0}};
  size_t written = 0;
  if (input.empty()) {
    close(in[1]);
    files[2].fd = -1;
  }
  while (files[0].fd >= 0 || files[1].fd >= 0) {
    poll(files, 3, -1);
    if (files[2].fd >= 0 && files[2].revents) {
      ssize_t n = ::write(in[1], input.data() + written, input.size() - written);
      if (n > 0) written += static_cast<size_t>(n);
      if (n < 0 || written == input.size()) {
        close(in[1]);
        files[2].fd = -1;
      }
    }
    for (int i : {0, 1}) {
      if (files[i].fd < 0 || !files[i].revents) continue;
      char block[4096];
      ssize_t n = ::read(files[i].fd, block, sizeof block);
      if (n > 0) {
        texts[i]->append(block, static_cast<size_t>(n));
        if (i == 0 && on_output) on_output(result.out, pid);
      } else {
        close(files[i].fd);
        files[i].fd = -1;
      }
    }
  }
  if (files[2].fd >= 0) close(in[1]);
  int status = 0;
  waitpid(pid, &status, 0);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "wick_cli_XXXXXX").string();
  if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
  folder_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string TempFolder::path(const std::string& name) const {
  return name.empty() ? folder_.string() : (folder_ / name).string();
}

std::string TempFolder::write(const std::string& name, const std::string& text) const {
  std::filesystem::create_directories((folder_ / name).parent_path());
  write_file(folder_ / name, text);
  return path(name);
}

std::string contents(const std::string& path) { return read_file(path); }

}  // namespace wick::test
