// Forked children of a test.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "check.h"

// Whether the call, in a child, returned true within a minute.
inline bool holds_in_child(const std::function<bool()>& call) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    bool held = false;
    try {
      held = call();
    } catch (...) {
    }
    ::_exit(held ? 0 : 1);
  }
  int status = -1;
  CHECK(child > 0 && ::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Whether the call is refused because the process was forked.
inline bool refused_after_fork(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return std::string(error.what()).find("forked") != std::string::npos;
  }
  return false;
}
