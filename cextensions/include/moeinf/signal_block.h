// Blocks signals while engine threads are started: they inherit the mask, so that handlers run in the
// caller's threads. Signals that a thread's own fault raises stay open: blocked, they would end the process
// without the trace that Python's faulthandler writes.
#pragma once

#include <csignal>

namespace moeinf {

class SignalBlock {
 public:
  SignalBlock() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalBlock() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

 private:
  sigset_t before_;
};

}  // namespace moeinf
