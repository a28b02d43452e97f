# headwater_options(TARGET): language level, warnings and include paths of every target of ours; nothing leaks to consumers.
function(headwater_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target}
    PUBLIC $<BUILD_INTERFACE:${headwater_SOURCE_DIR}/include>
    PRIVATE ${headwater_SOURCE_DIR})
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-ffp-contract=off>
    # GCC bug 105651: false -Wrestrict on "literal" + std::string, fixed in GCC 13.
    $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${HEADWATER_WERROR}>>:-Werror>)
endfunction()
