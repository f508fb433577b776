// How long the link idles between two visits: the time that prefetches may fill.
#pragma once

#include <algorithm>
#include <functional>

namespace moeinf {

// The smoothed time between the last demand read of a visit, or another moment, and the beginning of the
// next.
class IdleWindow {
 public:
  static constexpr double kSmoothing = 0.2;  // weight of the last visit
  using Clock = std::function<double()>;     // seconds

  // lag_s: for how long what has landed is still under way, where a reader says that it landed before.
  // seconds: what is taken for the window until visits tell.
  IdleWindow(Clock clock, Clock lag_s, double seconds)
      : clock_(std::move(clock)), lag_s_(std::move(lag_s)), seconds_(seconds), demand_ended_s_(clock_()) {}

  double seconds() const { return seconds_; }
  void set_seconds(double seconds) { seconds_ = seconds; }

  void visit_begins() {
    const double now = clock_();
    seconds_ += kSmoothing * (std::max(0.0, now - demand_ended_s_) - seconds_);
    demand_ended_s_ = now;
  }
  // The last expert that the visit was waiting for has landed.
  void demand_ends() { demand_ended_s_ = clock_() + lag_s_(); }

 private:
  Clock clock_, lag_s_;
  double seconds_;
  double demand_ended_s_;
};

}  // namespace moeinf
