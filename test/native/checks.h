// checks.h - how the native tests report failures.
//
// CHECK prints the condition that failed. Random tests take their seed from the command line and print it.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

inline int failures = 0;
inline std::string context;

inline void check(bool right, const char* what, int line) {
  if (right) return;
  failures++;
  std::printf("line %d: %s%s%s\n", line, what, context.empty() ? "" : ", with ", context.c_str());
}
#define CHECK(condition) check((condition), #condition, __LINE__)

inline std::mt19937 rng;
inline uint32_t random_below(uint32_t limit) { return std::uniform_int_distribution<uint32_t>(0, limit - 1)(rng); }

inline unsigned seed_of(int argc, char** argv) {
  const unsigned seed = argc > 1 ? static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10)) : 1;
  rng.seed(seed);
  return seed;
}
inline int verdict(unsigned seed) {
  std::printf("seed %u: %d failures\n", seed, failures);
  return failures == 0 ? 0 : 1;
}
