package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAcksSurviveACutLastLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "acks")
	a, err := openAcks(path)
	if err != nil {
		t.Fatal(err)
	}
	for lsn := uint64(1); lsn <= 5; lsn++ {
		a.expect(lsn, []byte{byte(lsn)})
	}
	a.acknowledged(3)
	if got, err := readAcks(path); err != nil || len(got) != 3 || got[3] != hash([]byte{3}) {
		t.Fatalf("after acknowledging 3 of 5: %v, %v", got, err)
	}
	a.acknowledged(5)
	a.acknowledged(4) // a late notification changes nothing
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b[:len(b)-4], 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := readAcks(path); err != nil || len(got) != 4 {
		t.Fatalf("a line that was cut short counted as an acknowledgement: %v, %v", got, err)
	}
}

func TestTwoContentsOfOneLSNAreAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "acks")
	if err := os.WriteFile(path, []byte("1 "+hash([]byte("x"))+"\n1 "+hash([]byte("y"))+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readAcks(path); err == nil {
		t.Fatal("two contents under one LSN were accepted")
	}
}
