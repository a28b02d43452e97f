# Installed CMake package (headwater::core, ::cpu, ::cuda, ::headwater) and pkg-config file.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(headwater_installed headwater headwater_core headwater_cpu)
if(TARGET headwater_cuda)
  list(APPEND headwater_installed headwater_cuda)
endif()
foreach(target IN LISTS headwater_installed)
  target_include_directories(${target} PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
install(TARGETS ${headwater_installed} EXPORT headwater_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${headwater_SOURCE_DIR}/include/headwater DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT headwater_targets NAMESPACE headwater:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headwater)
configure_package_config_file(${headwater_SOURCE_DIR}/cmake/headwater-config.cmake.in ${headwater_BINARY_DIR}/headwater-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headwater)
write_basic_package_version_file(${headwater_BINARY_DIR}/headwater-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${headwater_BINARY_DIR}/headwater-config.cmake ${headwater_BINARY_DIR}/headwater-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headwater)
configure_file(${headwater_SOURCE_DIR}/cmake/headwater.pc.in ${headwater_BINARY_DIR}/headwater.pc @ONLY)
install(FILES ${headwater_BINARY_DIR}/headwater.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
