// Files that no program would write and an attacker might.
#pragma once

#include <string>
#include <vector>

#include "src/io/safetensors.h"
#include "tests/io/temp_file.h"

namespace headwater::io {

// One entry of a header.
inline std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

// Each gets a Status (exit code 2) whose message has `why` in it.
struct Hostile {
  const char* why;  // a piece of the message
  std::string bytes;
};

inline std::vector<Hostile> hostile_files() {
  const std::string a = tensor("a", "U8", "[4]", "[0,4]");
  std::string deep = "{\"a\":";
  for (int i = 0; i < 100'000; ++i) deep += "[";
  std::string deep_objects = "{\"a\":";
  for (int i = 0; i < 100'000; ++i) deep_objects += "{\"a\":";
  return {
      {"shorter than the 8", ""},
      {"shorter than the 8", "1234567"},
      {"cut short", le64(2)},
      {"cut short", raw_safetensors("{" + a + "}", "").substr(0, 20)},
      {"above the limit", le64(UINT64_MAX)},
      {"above the limit", le64(uint64_t{1} << 40) + "{}"},
      {"above the limit", le64(kMaxHeaderBytes + 1)},
      {"begin with '{'", raw_safetensors("", "")},
      {"begin with '{'", raw_safetensors("[]", "")},
      {"begin with '{'", raw_safetensors("\xef\xbb\xbf{}", "")},
      {"begin with '{'", raw_safetensors(" {}", "")},
      {"zero byte", raw_safetensors(std::string("{}\0garbage", 10), "")},
      {"not valid JSON", raw_safetensors("{", "")},
      {"not valid JSON", raw_safetensors("{}{}", "")},
      {"not valid JSON", raw_safetensors("{\"a\":}", "")},
      {"not valid JSON", raw_safetensors("{\"\xff\":1}", "")},
      {"not valid JSON", raw_safetensors("{\"\xc0\x80\":1}", "")},
      {"not valid JSON", raw_safetensors("{/**/}", "")},
      {"an array", raw_safetensors(deep, "")},
      {"unknown field", raw_safetensors(deep_objects, "")},
      {"must be an object", raw_safetensors("{\"a\":1}", "")},
      {"must be an object", raw_safetensors("{\"a\":null}", "")},
      {"must be an object", raw_safetensors("{\"__metadata__\":3}", "")},
      {"must be a string", raw_safetensors("{\"__metadata__\":{\"k\":1}}", "")},
      {"must be a string", raw_safetensors("{\"__metadata__\":{\"k\":{\"k\":\"v\"}}}", "")},
      {"key 'k' is given twice", raw_safetensors("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", "")},
      {"'__metadata__' is named twice", raw_safetensors("{\"__metadata__\":{},\"__metadata__\":{}}", "")},
      {"'a' is named twice", raw_safetensors("{" + a + "," + a + "}", "abcd")},
      {"'dtype' is given twice",
       raw_safetensors("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", "abcd")},
      {"no data_offsets", raw_safetensors("{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}", "abcd")},
      {"no shape", raw_safetensors("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}", "abcd")},
      {"no dtype", raw_safetensors("{\"a\":{}}", "")},
      {"unknown field 'x'", raw_safetensors("{\"a\":{\"x\":0}}", "")},
      {"not a safetensors type", raw_safetensors("{" + tensor("a", "F7", "[4]", "[0,4]") + "}", "abcd")},
      {"negative number -4", raw_safetensors("{" + tensor("a", "U8", "[-4]", "[0,4]") + "}", "abcd")},
      {"the number 4.0", raw_safetensors("{" + tensor("a", "U8", "[4.0]", "[0,4]") + "}", "abcd")},
      {"the number 1e3", raw_safetensors("{" + tensor("a", "U8", "[1e3]", "[0,4]") + "}", "abcd")},
      {"the number 99999999999999999999", raw_safetensors("{" + tensor("a", "U8", "[99999999999999999999]", "[0,4]") + "}", "abcd")},
      {"dimension 18446744073709551615", raw_safetensors("{" + tensor("a", "U8", "[18446744073709551615]", "[0,4]") + "}", "abcd")},
      {"more than 8 dimensions", raw_safetensors("{" + tensor("a", "U8", "[1,1,1,1,1,1,1,1,4]", "[0,4]") + "}", "abcd")},
      {"more than two numbers", raw_safetensors("{" + tensor("a", "U8", "[4]", "[0,4,4]") + "}", "abcd")},
      {"must be two", raw_safetensors("{" + tensor("a", "U8", "[4]", "[0]") + "}", "abcd")},
      {"end before begin", raw_safetensors("{" + tensor("a", "U8", "[4]", "[4,0]") + "}", "abcd")},
      {"past the end", raw_safetensors("{" + tensor("a", "U8", "[4]", "[0,5]") + "}", "abcd")},
      {"past the end", raw_safetensors("{" + tensor("a", "U8", "[4]", "[18446744073709551612,18446744073709551615]") + "}", "abcd")},
      {"takes 5 bytes", raw_safetensors("{" + tensor("a", "U8", "[5]", "[0,4]") + "}", "abcd")},
      {"no valid size", raw_safetensors("{" + tensor("a", "F64", "[4294967296,4294967296]", "[0,0]") + "}", "")},
      {"no valid size", raw_safetensors("{" + tensor("a", "F32", "[9223372036854775807,2]", "[0,4]") + "}", "abcd")},
      {"no valid size", raw_safetensors("{" + tensor("a", "F4", "[3]", "[0,2]") + "}", "ab")},
      {"overlap", raw_safetensors("{" + tensor("a", "U8", "[4]", "[0,4]") + "," + tensor("b", "U8", "[2]", "[2,4]") + "}", "abcd")},
      {"overlap", raw_safetensors("{" + tensor("a", "U8", "[4]", "[0,4]") + "," + tensor("b", "U8", "[4]", "[0,4]") + "}", "abcd")},
      {"belong to no tensor",
       raw_safetensors("{" + tensor("a", "U8", "[1]", "[0,1]") + "," + tensor("b", "U8", "[2]", "[2,4]") + "}", "abcd")},
      {"belong to no tensor", raw_safetensors("{" + a + "}", "abcdX")},
      {"longer than 256", raw_safetensors("{" + tensor(std::string(300, 'n'), "U8", "[4]", "[0,4]") + "}", "abcd")},
  };
}

}  // namespace headwater::io
