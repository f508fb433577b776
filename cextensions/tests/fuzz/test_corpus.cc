// What coverage-guided fuzzing has kept: each input once more. `make campaign` finds new ones.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "fuzz/targets.h"

TEST(inputs_of_the_corpus_that_native_code_was_given_are_as_they_should_be) {
  for (const moeinf::fuzz::Target& target : moeinf::fuzz::kTargets) {
    int num_run = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(std::string(MOEINF_CORPUS) + "/" + target.name)) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
      const std::vector<unsigned char> data(bytes.begin(), bytes.end());
      try {
        target.run({data.data(), data.size()});
      } catch (const std::exception& error) {
        throw std::runtime_error(entry.path().string() + ": " + error.what());
      }
      ++num_run;
    }
    CHECK(num_run > 0);
  }
}
