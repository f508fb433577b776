// To which process something belongs that has threads or a device: a forked child has the object, and none of
// the threads.
#pragma once

#include <memory>

namespace moeinf {

class HomeProcess {
 public:
  HomeProcess();  // this one

  bool is_here() const;
  // Throws std::runtime_error in a forked child.
  void require() const;

 private:
  int num_forks_;
};

// Deletes in the home process alone. In a forked child the object is left as it is: to join its threads, or
// to end what they wait on, would hang.
class DeleteAtHome {
 public:
  template <typename T>
  void operator()(T* object) const {
    if (home_.is_here()) delete object;
  }

 private:
  HomeProcess home_;
};

template <typename T>
using HeldAtHome = std::unique_ptr<T, DeleteAtHome>;

}  // namespace moeinf
