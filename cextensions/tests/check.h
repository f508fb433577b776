// Assertions and the registry of the native tests: TEST(a sentence of behaviour) { CHECK(...); }
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

struct TestCase {
  const char* name;
  void (*run)();
};

inline std::vector<TestCase>& test_cases() {
  static std::vector<TestCase> cases;
  return cases;
}

struct Registration {
  Registration(const char* name, void (*run)()) { test_cases().push_back({name, run}); }
};

#define TEST(name)                                            \
  static void name();                                         \
  static const Registration name##_registration(#name, name); \
  static void name()

#define CHECK(condition)                                                                                    \
  do {                                                                                                      \
    if (!(condition))                                                                                       \
      throw std::runtime_error(std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": " + #condition); \
  } while (false)

template <typename Error>
inline bool throws(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error&) {
    return true;
  }
  return false;
}
