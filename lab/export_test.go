package lab

// Forbidding is forbidding, for the tests, which import testnet and so lab.
var Forbidding = forbidding
