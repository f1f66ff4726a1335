// Package rules holds the house rules of this repository as tests: who may
// import whom and why, what every package must document, and what never stands
// in the code. The package has no code outside its tests.
//
// A rule is a function from the parsed tree to findings. Each has cases in
// fixtures_test.go that prove it can fail; a rule without one fails by itself.
// To change the import law, change the table in imports_test.go together with
// the document that explains the layout.
package rules
