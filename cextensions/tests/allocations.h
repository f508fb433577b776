// Memory that is refused: every request for it can be made to fail, one after the other.
#pragma once

#include <cerrno>
#include <new>

#include "check.h"
#include "moeinf/errors.h"

enum class Refused { kOnce, kFromThenOn };

// While it lives, the request for memory with this number fails, counted from 0 in all threads, and all that
// follow where they are refused from then on: operator new in each form, and anonymous mappings of the
// engine.
class FailingAllocation {
 public:
  FailingAllocation(int number, Refused refused);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;

  static bool has_failed();
};

// Lets each request for memory fail in turn that ask(subject) makes, each time of a new subject, until none
// is left; returns how many there were. An answer is right, or it is refused for want of memory; asked again
// with memory, it is right. ask returns whether it was.
template <typename Make, typename Ask>
int at_every_allocation(const Make& make, const Ask& ask) {
  int number = 0;
  for (const Refused refused : {Refused::kFromThenOn, Refused::kOnce}) {
    bool has_failed = true;
    for (number = 0; has_failed; ++number) {
      auto subject = make();
      bool right = true;
      {
        const FailingAllocation failing(number, refused);
        try {
          right = ask(*subject);
        } catch (const std::bad_alloc&) {
        } catch (const moeinf::ReadFailure& failure) {
          right = failure.error == ENOMEM;
        }
        has_failed = FailingAllocation::has_failed();
      }
      CHECK(right);
      CHECK(ask(*subject));
    }
  }
  return number - 1;
}
