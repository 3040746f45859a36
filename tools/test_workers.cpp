#include "tools/test_workers.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace lathe::tools {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// Takes the first line out of `buffer`, once all of it is there.
std::optional<std::string> take_line(std::string& buffer) {
  const size_t end = buffer.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = buffer.substr(0, end);
  buffer.erase(0, end + 1);
  return line;
}

// False at the end of the file.
bool read_more(int file, std::string& buffer) {
  char bytes[4096];
  ssize_t count = 0;
  do count = read(file, bytes, sizeof bytes);
  while (count < 0 && errno == EINTR);
  if (count > 0) buffer.append(bytes, static_cast<size_t>(count));
  return count > 0;
}

// False when nobody listens any more. Files and sockets alike; SIGPIPE is left to its default, the end of a worker.
bool write_line(int file, std::string text, bool is_socket) {
  text += '\n';
  for (size_t at = 0; at < text.size();) {
    const ssize_t count = is_socket ? send(file, text.data() + at, text.size() - at, MSG_NOSIGNAL)
                                    : write(file, text.data() + at, text.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += static_cast<size_t>(count);
  }
  return true;
}

std::string text_of(const json& object) { return object.dump(-1, ' ', false, json::error_handler_t::replace); }

CaseResult answer_to(const std::string& line, const CaseOptions& each) {
  TestCase test;
  try {
    const json request = json::parse(line);
    test.directory = request.at("dir").get<std::string>();
    if (request.contains("rtol") || request.contains("atol"))
      test.tolerance = {request.value("rtol", each.tolerance.rtol), request.value("atol", each.tolerance.atol)};
    test.save = request.value("out", "");
  } catch (const json::exception& error) {
    return {CaseStatus::error, std::string("bad request: ") + error.what()};
  }
  return run_case(test, each);
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status))
    return fmt::format("killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  return fmt::format("its process ended with exit code {}", WEXITSTATUS(status));
}

// One forked process.
struct Worker {
  pid_t process = -1;  // -1: none
  int socket = -1;
  std::string buffer;
  std::optional<size_t> running;  // the case
  Clock::time_point begin;
};

class Pool {
 public:
  Pool(const std::vector<TestCase>& cases, const CaseOptions& each, const WorkerOptions& options,
       const std::function<void(size_t, const CaseResult&)>& done)
      : cases_(cases), each_(each), options_(options), done_(done) {
    workers_.resize(std::min(cases.size(), static_cast<size_t>(std::max(options.jobs, 1))));
  }

  bool run() {
    while (finished_ < cases_.size()) {
      for (Worker& worker : workers_)
        if (!worker.running && next_ < cases_.size()) give_next(worker);
      wait_for_answers();
    }
    bool ended_well = true;
    for (Worker& worker : workers_) {
      if (worker.process < 0) continue;
      if (const int status = end(worker); status != 0) {
        std::fprintf(stderr, "lathe: after its last case, a worker was %s\n", how_it_ended(status).c_str());
        ended_well = false;
      }
    }
    return ended_well;
  }

 private:
  void give_next(Worker& worker) {
    const TestCase& test = cases_[next_];
    json request{{"dir", test.directory}};
    if (test.tolerance) request.update({{"rtol", test.tolerance->rtol}, {"atol", test.tolerance->atol}});
    if (!test.save.empty()) request["out"] = test.save;
    if (worker.process < 0) start(worker);
    worker.running = next_++;
    worker.begin = Clock::now();
    // A worker that just died is found out by reading from it.
    write_line(worker.socket, text_of(request), true);
  }

  void start(Worker& worker) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw Error(ErrorCode::limit, std::string("cannot start a worker: ") + std::strerror(errno));
    std::fflush(nullptr);  // or the child would print it again
    worker.process = fork();
    if (worker.process < 0)
      throw Error(ErrorCode::limit, std::string("cannot start a worker: ") + std::strerror(errno));
    if (worker.process == 0) {
      close(ends[0]);
      be_worker(ends[1]);
    }
    close(ends[1]);
    worker.socket = ends[0];
    worker.buffer.clear();
  }

  [[noreturn]] void be_worker(int socket) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // not to outlive the run
    for (const Worker& other : workers_)
      if (other.socket >= 0) close(other.socket);
    // When memory runs out, a worker is to go, not the run.
    std::ofstream("/proc/self/oom_score_adj") << 1000;
    serve_cases(socket, socket, each_);
    std::exit(0);  // not _exit: sanitizers look for leaks here
  }

  void wait_for_answers() {
    std::vector<pollfd> sockets;
    for (const Worker& worker : workers_) sockets.push_back({worker.running ? worker.socket : -1, POLLIN, 0});
    if (poll(sockets.data(), sockets.size(), milliseconds_left()) < 0 && errno != EINTR)
      throw Error(ErrorCode::internal, std::string("poll: ") + std::strerror(errno));
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (!workers_[i].running) continue;
      if (sockets[i].revents != 0)
        receive(workers_[i]);
      else if (limit() > 0 && seconds_of(workers_[i]) >= limit())
        stop(workers_[i]);
    }
  }

  void receive(Worker& worker) {
    if (!read_more(worker.socket, worker.buffer)) {
      finish(worker, {CaseStatus::crash, how_it_ended(end(worker))});
      return;
    }
    const std::optional<std::string> line = take_line(worker.buffer);
    if (!line) return;
    const json answer = json::parse(*line, nullptr, false);
    if (answer.is_object())
      finish(worker, {status_named(answer.value("status", "")), answer.value("detail", "")});
    else
      finish(worker, {CaseStatus::error, "its process wrote where it should not"});
  }

  void stop(Worker& worker) {
    kill(worker.process, SIGKILL);
    end(worker);
    finish(worker, {CaseStatus::timeout, fmt::format("stopped after {:g} s", limit())});
  }

  void finish(Worker& worker, CaseResult result) {
    result.seconds = seconds_of(worker);
    const size_t test = *std::exchange(worker.running, std::nullopt);
    ++finished_;
    done_(test, result);
  }

  // The exit status, for wait's macros.
  static int end(Worker& worker) {
    close(worker.socket);
    int status = 0;
    while (waitpid(worker.process, &status, 0) < 0 && errno == EINTR) continue;
    worker.process = worker.socket = -1;
    return status;
  }

  double limit() const { return options_.timeout_seconds; }
  static double seconds_of(const Worker& worker) {
    return std::chrono::duration<double>(Clock::now() - worker.begin).count();
  }
  // Until the first worker has had its time; -1: for ever.
  int milliseconds_left() const {
    constexpr double kLongest = 3600;
    double left = kLongest;
    for (const Worker& worker : workers_)
      if (worker.running) left = std::min(left, limit() - seconds_of(worker));
    return limit() > 0 ? static_cast<int>(std::max(left, 0.0) * 1e3) + 1 : -1;
  }

  const std::vector<TestCase>& cases_;
  const CaseOptions& each_;
  const WorkerOptions& options_;
  const std::function<void(size_t, const CaseResult&)>& done_;
  std::vector<Worker> workers_;
  size_t next_ = 0, finished_ = 0;
};

}  // namespace

bool run_in_workers(const std::vector<TestCase>& cases, const CaseOptions& each, const WorkerOptions& options,
                    const std::function<void(size_t, const CaseResult&)>& done) {
  return Pool(cases, each, options, done).run();
}

void serve_cases(int in, int out, const CaseOptions& each) {
  std::string buffer;
  do {
    while (const std::optional<std::string> line = take_line(buffer)) {
      const CaseResult result = answer_to(*line, each);
      if (!write_line(out, text_of({{"status", name_of(result.status)}, {"detail", result.detail}}), false)) return;
    }
  } while (read_more(in, buffer));
}

}  // namespace lathe::tools
